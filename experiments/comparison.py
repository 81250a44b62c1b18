"""Schemes side by side: errors at fractions of the cost, over OPT's, and seed by seed."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from anytime.evaluation import FRACTIONS
from experiments.figures import plot_differences
from experiments.intervals import Interval
from experiments.records import Records, Section, errors_at, opt_exits, spread

PLACES = [f"{fraction:g}" for fraction in FRACTIONS]
HEADER = ["", *(f"{place} of the cost" for place in PLACES), "n"]
OPT = "OPT"
"""How the labels of networks that were trained for one exit alone begin: others are compared with them."""
OPT_STACKED = f"{OPT}, stacked"
COMBINED = ("ensemble", "stacking")
"""After a scheme's name and a plus: its trained exits answer together."""

Errors = dict[tuple[str, int], list[float]]
"""By network and seed, the test errors at the fractions."""
Found = dict[str, Errors]
"""By a scheme's label."""


def find(
    preset: str, records: Records, models: Sequence[str], data: str, schemes: Mapping[str, str], seeds: int
) -> Found:
    """The errors of the first seeds by the schemes' labels, and OPT's where all of its exits are done."""
    found: Found = {}
    for model in models:
        for scheme, label in schemes.items():
            trained, of = split(scheme)
            for seed, record in records.seeds(preset, model, data, trained, seeds).items():
                if of in record:
                    found.setdefault(label, {})[model, seed] = errors_at(record, FRACTIONS, of)
    wanted = {OPT: "test"} | ({OPT_STACKED: "stacking"} if any(split(s)[1] == "stacking" for s in schemes) else {})
    for label, of in wanted.items():
        for model in models:
            alone = [(exit, model) for exit in opt_exits(model, FRACTIONS)]
            for seed, errors in opt_errors(preset, records, alone, data, seeds, of).items():
                found.setdefault(label, {})[model, seed] = errors
    return found


def opt_errors(
    preset: str, records: Records, alone: Sequence[tuple[int, str]], data: str, seeds: int, of: str = "test"
) -> dict[int, list[float]]:
    """By seed, the errors of networks that were trained for one exit alone, where all of them are done.

    Args:
        preset: the setting.
        records: of all runs.
        alone: an exit at each fraction of the cost, and the network that was trained for it.
        data: the data set.
        seeds: how many to look for.
        of: the record's word for the errors.
    """
    each = [(exit, records.seeds(preset, model, data, f"opt-{exit + 1}", seeds)) for exit, model in alone]
    return {
        seed: [done[seed][of]["errors"][exit] for exit, done in each]
        for seed in range(seeds)
        if all(of in done.get(seed, ()) for _, done in each)
    }


def split(scheme: str) -> tuple[str, str]:
    """The scheme that is trained, and what its record calls the errors: annealed+stacking is annealed, stacking."""
    trained, _, last = scheme.rpartition("+")
    return (trained, last) if last in COMBINED else (scheme, "test")


def increases(found: Found) -> dict[str, list[list[float]]]:
    """By label, for each network and seed that has OPT too, the relative increase over it at the fractions."""
    opts = found.get(OPT, {})
    rows = {
        label: [
            [error / opt - 1 for error, opt in zip(row, opts[key], strict=True)]
            for key, row in errors.items()
            if key in opts
        ]
        for label, errors in found.items()
        if not label.startswith(OPT)
    }
    return {label: each for label, each in rows.items() if each}


def by_seed(rows: Mapping[tuple[str, int], Sequence[float]]) -> dict[int, list[float]]:
    """The mean over networks of each seed, at the fractions; only of the networks that all seeds have."""
    networks = {network for network, _ in rows}
    result: dict[int, list[float]] = {}
    for seed in sorted({seed for _, seed in rows}):
        each = [rows[network, seed] for network in networks if (network, seed) in rows]
        if len(each) == len(networks):
            result[seed] = [statistics.mean(column) for column in zip(*each, strict=True)]
    return result


def paired(found: Found, first: str, second: str) -> dict[int, list[float]]:
    """By seed, the first scheme's errors minus the second's of the same network and seed, at the fractions."""
    ours, theirs = found.get(first, {}), found.get(second, {})
    return by_seed({key: [a - b for a, b in zip(ours[key], theirs[key], strict=True)] for key in ours if key in theirs})


def relative(found: Found, scheme: str) -> dict[int, list[float]]:
    """By seed, the relative increase of a scheme's errors over OPT's of the same network and seed."""
    ours, opt = found.get(scheme, {}), found.get(OPT, {})
    return by_seed({key: [a / b - 1 for a, b in zip(ours[key], opt[key], strict=True)] for key in ours if key in opt})


def differences(found: Found, base: str) -> dict[str, list[Interval]]:
    """By label, at each fraction the test error minus the base's of the same network and seed, pooled by seed."""
    result = {}
    for label in found:
        rows = paired(found, label, base)
        if label != base and not label.startswith(OPT) and rows:
            result[label] = [Interval.of(column) for column in zip(*rows.values(), strict=True)]
    return result


def cells(rows: Iterable[list[float]]) -> list[str]:
    """For a table, the mean and standard deviation at each fraction."""
    return [spread(column) for column in zip(*rows, strict=True)]


def add_errors(section: Section, where: str, found: Found) -> None:
    """A table of the test errors."""
    section.text.append(f"Test error on {where} in % at fractions of the cost, mean ± standard deviation over seeds.")
    section.table(HEADER, [[label, *cells(errors.values()), len(errors)] for label, errors in found.items()])


def add_increases(section: Section, where: str, found: Found) -> None:
    """A table of the paper's measure, the relative increase in error over OPT of the same seed."""
    rows = [[label, *cells(each), len(each)] for label, each in increases(found).items()]
    if rows:
        section.text.append(f"Relative increase in test error over OPT on {where}, in %.")
        section.table(HEADER, rows)


def add_differences(section: Section, where: str, found: Found, base: str) -> None:
    """A table of the paired differences to a base, and what can be said of them."""
    paired = differences(found, base)
    if not paired:
        return
    intervals = any(row[0].n > 1 for row in paired.values())
    if not intervals:
        section.verdicts.append(f"**{where}**. One seed, so the differences have no intervals.")
    for i, place in enumerate(PLACES if intervals else ()):
        better, worse = (
            [label for label, each in paired.items() if each[i].sign == sign] for sign in ("negative", "positive")
        )
        section.verdicts.append(
            f"**{where}**, {place} of the cost. Better than {base}: {'; '.join(better) or 'none'}. "
            f"Worse: {'; '.join(worse) or 'none'}." + " Others: inconclusive." * (len(better + worse) < len(paired))
        )
    section.text.append(
        f"Test error on {where} minus {base}'s of the same seed, in points"
        + ", with the 95 % interval of the mean" * intervals
        + f": below 0, it is better than {base}."
    )
    section.table(HEADER, [[label, *(each.percent() for each in row), row[0].n] for label, row in paired.items()])


def draw_differences(section: Section, panels: Mapping[str, Mapping[str, list[Interval]]], base: str) -> None:
    """A figure of the paired differences to a base, a panel for each setting."""
    if panels:
        section.figures["difference"] = (
            f"Paired differences to {base}, with 95 % intervals",
            partial(
                plot_differences, panels, PLACES, x_name="fraction of the cost", y_name=f"error − {base}'s (points)"
            ),
        )
