"""Single cells of the experiments, and schemes of one's own in the same settings.

    python -m experiments run table_weights --only svhn --schemes adaloss,my_package:my_scheme --seeds 3

trains every setting (network, data set, recipe) of these experiments with these schemes and seeds. A scheme of one's
own is called with the number of exits and returns a module from a vector of losses to the number to minimize.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from anytime.errors import AnytimeError, check_integer
from anytime.evaluation import FRACTIONS
from experiments.comparison import HEADER, Found, differences
from experiments.records import Record, as_table, errors_at, spread
from experiments.runner import Run


def cells(runs: Iterable[Run], schemes: Sequence[str] | None, seeds: int | None) -> list[Run]:
    """The runs of these settings with these schemes and seeds.

    Args:
        runs: of the experiments, whose settings are taken.
        schemes: each is trained in every setting; None for those that the runs have.
        seeds: how many, from 0; None for as many as the runs have.

    Examples:
        >>> run = Run("resann-1-8", "svhn", "adaloss", seed=0, recipe={"epochs": 1})
        >>> [each.name for each in cells([run], ["const", "linear"], seeds=2)]  # doctest: +NORMALIZE_WHITESPACE
        ['svhn-all-resann-1-8-const-1-seed0', 'svhn-all-resann-1-8-const-1-seed1',
         'svhn-all-resann-1-8-linear-1-seed0', 'svhn-all-resann-1-8-linear-1-seed1']
    """
    made: dict[str, Run] = {}
    if seeds is not None:
        check_integer("--seeds", seeds)
    for run in runs:
        numbers = [run.seed] if seeds is None else range(seeds)
        for each in (replace(run, scheme=scheme, seed=seed) for scheme in schemes or [run.scheme] for seed in numbers):
            made[each.name] = each
    return sorted(made.values(), key=lambda run: run.seed) if seeds is None else list(made.values())


def check_schemes(runs: Sequence[Run]) -> None:
    """Refuse a scheme that cannot be made before anything is trained."""
    import torch

    import anytime
    from experiments.controls import create_scheme

    for run in {(run.model, run.scheme): run for run in runs}.values():
        with torch.device("meta"):
            net = anytime.create_model(run.model)
        try:
            create_scheme(run.scheme.partition("+")[0], net)
        except (TypeError, ValueError) as error:
            raise AnytimeError(f"--schemes {run.scheme}: {error}") from error


def as_text(runs: Sequence[Run], records: dict[str, Record]) -> str:
    """For each setting a table of the errors at fractions of the cost, and of the differences to the first scheme."""
    settings: dict[tuple[str, str, str], Found] = {}
    for run in runs:
        if record := records.get(run.name):
            key = (run.data, run.model, f"{run.recipe['epochs']} epochs" + f", {run.tag}" * bool(run.tag))
            found = settings.setdefault(key, {})
            found.setdefault(run.scheme, {})[run.model, run.seed] = errors_at(record, FRACTIONS)
    parts = []
    for key, found in settings.items():
        base = next(iter(found))
        rows = [[scheme, *_cells(list(each.values())), len(each)] for scheme, each in found.items()]
        parts += [f"Test error in %, {', '.join(key)}:", as_table(HEADER, rows)]
        whole = {name: each for name, each in found.items() if None not in next(iter(each.values()))}
        if base in whole and (paired := differences(whole, base)):
            rows = [[name, *(each.percent() for each in row), row[0].n] for name, row in paired.items()]
            parts += [f"The same minus {base}'s of the same seed, in points (95 % intervals):", as_table(HEADER, rows)]
    return "\n\n".join(parts) or "Not enough runs have ended to say anything."


def _cells(rows: Sequence[Sequence[float | None]]) -> list[str]:
    return [spread([value for value in column if value is not None]) for column in zip(*rows, strict=True)]
