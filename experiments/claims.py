"""What the paper claims, one line each, judged by the records: shown, contradicted, inconclusive or not tried."""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.intervals import Interval, number, smallest_effect

NEAR = 0.10
"""At most so many more errors, as a share, are *near* OPT: the paper calls 2.7 % near and 12.7 % not."""
RULES = f"""A claim is **shown** if the 95 % interval of its measure over seeds (Student's t) lies on the paper's
side of the limit, **contradicted** if it lies on the other, **inconclusive** otherwise; then the smallest difference
from the limit that as many seeds could have shown is given (80 % power at the 5 % level, with the spread that was
found). The limit is 0; for *near OPT* it is {100 * NEAR:.0f} % more errors. Several networks are pooled by seed: first
the mean over networks, then the interval over seeds. Intervals are not corrected for the number of claims: of forty
without any effect, two would be called shown or contradicted."""
HEADER = ["where", "the paper says", "the paper's number", "here"]
STATES = ("shown", "contradicted", "inconclusive", "not tried")


@dataclass(frozen=True)
class Claim:
    """One claim in one setting.

    Args:
        where: in the paper: a table, a figure, a section.
        says: what it says.
        paper: its number; "plot" if it prints none.
        setting: what it was tried on here.
        ours: what was found, with its interval.
        verdict: begins with ``shown``, ``contradicted``, ``inconclusive`` or ``not tried``.
    """

    where: str
    says: str
    paper: str
    setting: str
    ours: str
    verdict: str

    def line(self) -> str:
        """What was found, for the table of claims."""
        found = f"{self.setting}: {self.ours}" if self.ours != "–" else self.setting
        return f"**{self.status}** {found}{self.rest}"

    def sentence(self) -> str:
        """Its line in the section of its experiment."""
        found = f": {self.ours}" if self.ours != "–" else ""
        return f"**{self.status.capitalize()}**{self.rest}. {self.where}, {self.setting}: {self.says}{found}."

    @property
    def status(self) -> str:
        """The verdict without what it adds."""
        return self.verdict.partition(";")[0]

    @property
    def rest(self) -> str:
        """What the verdict adds."""
        return "".join(self.verdict.partition(";")[1:])


@dataclass(frozen=True)
class Measure:
    """How a claim's values are shown: multiplied, with a unit, and with so many digits."""

    unit: str = "points"
    scale: float = 100.0
    digits: int = 2

    def show(self, values: Sequence[float]) -> str:
        """The mean with its interval."""
        found = Interval.of([self.scale * value for value in values])
        mean = number(found.mean, self.digits)
        ends = f" [{number(found.low, self.digits)}, {number(found.high, self.digits)}]" if found.n > 1 else ""
        return f"{mean}{ends} {self.unit}, n = {found.n}"


POINTS = Measure()
PERCENT = Measure("%", digits=1)


def judge(
    where: str,
    says: str,
    paper: str,
    setting: str,
    values: Sequence[float],
    measure: Measure = POINTS,
    above: float | None = None,
    below: float | None = None,
) -> Claim:
    """The claim that the mean of some values is above 0, or above or below a limit.

    Args:
        where: in the paper.
        says: what it says.
        paper: its number.
        setting: what it was tried on.
        values: by seed; none if it was not tried.
        measure: how they are shown.
        above: the limit that the paper's mean is above; 0 if neither is given.
        below: the limit that it is below.

    Examples:
        >>> judge("Table a", "A < B", "2", "SVHN", [0.01, 0.011, 0.012]).line()
        '**shown** SVHN: 1.10 [0.85, 1.35] points, n = 3'
        >>> judge("Table a", "A < B", "2", "SVHN", [0.01, -0.011, 0.012]).verdict
        'inconclusive; 3 seeds could have shown 4.16 points'
    """
    if not values:
        return Claim(where, says, paper, setting, "–", "not tried")
    ours = measure.show(values)
    if len(values) == 1:
        return Claim(where, says, paper, setting, ours, "inconclusive; one seed has no interval")
    sign, limit = (-1, below) if below is not None else (1, above or 0.0)
    sides = {"positive": "shown", "negative": "contradicted"}
    verdict = sides.get(Interval.of([sign * (value - limit) for value in values]).sign)
    if verdict is None:
        could = number(measure.scale * smallest_effect(values), measure.digits)
        verdict = f"inconclusive; {len(values)} seeds could have shown {could} {measure.unit}"
    return Claim(where, says, paper, setting, ours, verdict)


def not_tried(where: str, says: str, paper: str, setting: str, why: str = "") -> Claim:
    """A claim that no run here can decide."""
    return Claim(where, says, paper, setting, "–", f"not tried; {why}" if why else "not tried")


def all_of(where: str, says: str, paper: str, setting: str, parts: Sequence[Claim]) -> Claim:
    """The claim that several claims hold together: contradicted if one is, shown if all are."""
    ours = "; ".join(f"{part.says}: {part.ours}" for part in parts)
    states = [part.status for part in parts]
    order = ("contradicted", "not tried", "inconclusive", "shown")  # the first decides
    worst = min(parts, key=lambda part: order.index(part.status))
    rest = worst.rest if worst.status == "inconclusive" else ""
    return Claim(where, says, paper, setting, ours if "not tried" not in states else "–", worst.status + rest)


def counted(claims: Sequence[Claim]) -> str:
    """How many have which verdict."""
    counts = [(sum(claim.status == state for claim in claims), state) for state in STATES]
    return ", ".join(f"{count} {state}" for count, state in counts)


def rows(claims: Sequence[Claim]) -> list[list[str]]:
    """The table of claims: one row for each, with a line for each setting that it was tried in."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for claim in claims:
        grouped.setdefault((claim.where, claim.says, claim.paper), []).append(claim.line())
    return [[*key, "<br>".join(lines)] for key, lines in grouped.items()]
