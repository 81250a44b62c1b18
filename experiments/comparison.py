"""Schemes of one network side by side: errors at fractions of the cost, over OPT's, and seed by seed."""

from collections.abc import Mapping

from anytime.evaluation import FRACTIONS
from experiments.intervals import Interval
from experiments.records import Record, Records, Section, errors_at, opt_exits, spread

Found = dict[str, dict[int, Record]]
"""By label and seed, the records."""
HEADER = ["", *(f"{fraction:g} of the cost" for fraction in FRACTIONS), "n"]


def find(preset: str, records: Records, model: str, data: str, schemes: Mapping[str, str], seeds: int) -> Found:
    """The records of the first seeds by the schemes' labels; schemes without any are left out."""
    found = {label: records.seeds(preset, model, data, scheme) for scheme, label in schemes.items()}
    first = {label: {s: record for s, record in each.items() if s < seeds} for label, each in found.items()}
    return {label: each for label, each in first.items() if each}


def find_opt(preset: str, records: Records, model: str, data: str, seeds: int) -> dict[int, list[float]]:
    """By seed, OPT's errors at the fractions; only of the first seeds, and where all of its exits are done."""
    exits = [opt_exits(model, (fraction,))[0] for fraction in FRACTIONS]
    found = [records.seeds(preset, model, data, f"opt-{exit + 1}") for exit in exits]
    return {
        seed: [of_exit[seed]["test"]["errors"][exit] for of_exit, exit in zip(found, exits, strict=True)]
        for seed in sorted(set.intersection(*map(set, found)))
        if seed < seeds
    }


def add_errors(section: Section, where: str, found: Found, opt: dict[int, list[float]]) -> None:
    """A table of the test errors; below them OPT's, a network trained for each exit alone, if it is there."""
    section.text.append(f"Test error on {where} in % at fractions of the cost, mean ± standard deviation over seeds.")
    errors = {label: [errors_at(record, FRACTIONS) for record in each.values()] for label, each in found.items()}
    errors |= {"OPT": list(opt.values())} if opt else {}
    section.table(HEADER, [[label, *map(spread, zip(*rows, strict=True)), len(rows)] for label, rows in errors.items()])


def add_increases(section: Section, where: str, found: Found, opt: dict[int, list[float]]) -> None:
    """A table of the paper's measure, the relative increase in error over OPT of the same seed."""
    rows = []
    for label, records in found.items():
        each = [
            [error / best - 1 for error, best in zip(errors_at(record, FRACTIONS), opt[seed], strict=True)]
            for seed, record in records.items()
            if seed in opt
        ]
        if each:
            rows.append([label, *map(spread, zip(*each, strict=True)), len(each)])
    if rows:
        section.text.append(f"Relative increase in test error over OPT on {where}, in %.")
        section.table(HEADER, rows)


def differences(found: Found, base: str) -> dict[str, list[Interval]]:
    """By label, at each fraction the test error minus the base's of the same seed."""
    result = {}
    for label, ours in found.items():
        seeds = sorted(set(found.get(base, {})) & set(ours))
        if label != base and seeds:
            pairs = [(errors_at(ours[seed], FRACTIONS), errors_at(found[base][seed], FRACTIONS)) for seed in seeds]
            result[label] = [Interval.of([one[i] - other[i] for one, other in pairs]) for i in range(len(FRACTIONS))]
    return result


def add_differences(section: Section, where: str, found: Found, base: str) -> None:
    """A table of the paired differences to a base, and what can be said of them."""
    paired = differences(found, base)
    if not paired:
        return
    for i, fraction in enumerate(FRACTIONS):
        better, worse = (
            [label for label, each in paired.items() if each[i].sign == sign] for sign in ("negative", "positive")
        )
        section.verdicts.append(
            f"**{where}**, {fraction:g} of the cost. Better than {base}: {'; '.join(better) or 'none'}. "
            f"Worse: {'; '.join(worse) or 'none'}." + " Others: not decided." * (len(better + worse) < len(paired))
        )
    section.text.append(
        f"Test error on {where} minus {base}'s of the same seed, in points, with the 95 % interval of the mean: below "
        f"0, it is better than {base}."
    )
    section.table(HEADER, [[label, *(each.percent() for each in row), row[0].n] for label, row in paired.items()])
