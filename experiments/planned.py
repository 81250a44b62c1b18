"""When AdaLoss helps: experiments whose outcomes were predicted before they ran (PLAN.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anytime.evaluation import FRACTIONS
from experiments.claims import Claim
from experiments.intervals import Interval, holm, log2_slope, smallest_effect
from experiments.presets import MODELS, NARROW, make
from experiments.records import Records, Section, errors_at, spread
from experiments.runner import Run
from experiments.table_weights import compared, over_opt

TITLE = "When AdaLoss helps: outcomes predicted first"
CLAIM = "AdaLoss is better than CONST and LINEAR at the late exits. The plan is `experiments/PLAN.md`."
BASES = {"const": "CONST", "linear": "LINEAR", "adaloss": "AdaLoss"}
POWERS = {"power:p=0.5": "p = ½", "adaloss": "p = 1", "power:p=2": "p = 2", "static-law": "static law"}
OPT = "OPT"
PLACES = {"1/4": FRACTIONS.index(0.25), "end": FRACTIONS.index(1)}


@dataclass(frozen=True, eq=False)
class Arm:
    """A setting with its schemes, trained with several seeds.

    Args:
        label: in tables.
        model: a name that ``create_model`` knows.
        data: a data set's name.
        schemes: labels by the schemes' names.
        seeds: how many.
        recipe: what differs from the data set's usual recipe.
        tag: of the runs whose recipe differs in more than its epochs.
        images: how many to train on, if not as many as usual.
    """

    label: str
    model: str
    data: str
    schemes: Mapping[str, str]
    seeds: int
    recipe: Mapping[str, Any]
    tag: str = ""
    images: int | None = None

    def run(self, scheme: str, seed: int) -> Run:
        """One training."""
        usual = make("laptop", self.model, self.data, scheme, seed)
        images = self.images or usual.images
        return replace(usual, recipe={**usual.recipe, **self.recipe}, tag=self.tag, images=images)

    def errors(self, records: Records, label: str, place: str) -> dict[int, float]:
        """Test errors by seed; none of an exit that a scheme does not train."""
        scheme = next(name for name, each in self.schemes.items() if each == label)
        found = {seed: records.find(self.run(scheme, seed)) for seed in range(self.seeds)}
        errors = {seed: errors_at(record, FRACTIONS)[PLACES[place]] for seed, record in found.items() if record}
        return {seed: error for seed, error in errors.items() if error is not None}


CROPS = Arm("CIFAR-100 with crops", MODELS["cifar100"], "cifar100", BASES | {"opt-15": OPT}, 5, {"pad": 4}, tag="crops")
FEW = Arm(
    "CIFAR-10, 1,500 images without crops",
    MODELS["cifar10"],
    "cifar10",
    {"const": "CONST", "adaloss": "AdaLoss"},
    5,
    {"pad": 0, "epochs": 120, "batch_size": 60},
    tag="no-crops",
    images=1500,
)
POWER_SVHN = Arm("SVHN", NARROW, "svhn", POWERS | {"const": "CONST"}, 5, {})
POWER_CIFAR = Arm("narrow CIFAR-10", NARROW, "cifar10", POWERS | {"const": "CONST"}, 5, {})
SVHN = {e: Arm(f"SVHN, {e} epochs", NARROW, "svhn", BASES, 5, {"epochs": e}) for e in (6, 12, 24, 48)}
LONG = Arm("SVHN, 96 epochs", NARROW, "svhn", BASES, 3, {"epochs": 96})
CIFAR = {e: Arm(f"narrow CIFAR-10, {e} epochs", NARROW, "cifar10", BASES, 3, {"epochs": e}) for e in (30, 60, 180)}
STEPS = Arm(
    "narrow CIFAR-10, step schedule",
    NARROW,
    "cifar10",
    {"linear": "LINEAR", "adaloss": "AdaLoss"},
    5,
    {"schedule": "steps", "warmup": 0.0},
    tag="steps",
)
ARMS = (CROPS, FEW, POWER_SVHN, POWER_CIFAR, *SVHN.values(), CIFAR[30], CIFAR[60], STEPS, CIFAR[180], LONG)
"""In the order in which they are trained: 180 epochs of CIFAR-10 take longest and come near the end."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """The sign of a paired difference, or of its slope over log₂(epochs), said before the runs.

    Args:
        number: the experiment's in the plan.
        arms: one, or by epochs those of a dose.
        first: the label of the errors from which ``second``'s are subtracted.
        second: the other.
        place: ``end`` or ``1/4``.
        sign: 1 or −1.
        within: a tie, said in the plan beforehand, if the interval lies within ± so many points.
    """

    number: str
    arms: Arm | Mapping[int, Arm]
    first: str
    second: str
    place: str
    sign: int
    within: float | None = None

    @property
    def label(self) -> str:
        """What is predicted."""
        what = f"{self.first} − {self.second} {'>' if self.sign > 0 else '<'} 0 at {self.place}"
        if isinstance(self.arms, Arm):
            return f"{self.arms.label}: {what}"
        *_, last = self.arms.values()
        return f"{last.label.split(',')[0]}, {', '.join(map(str, self.arms))} epochs: slope of {what}"

    def values(self, records: Records) -> list[float]:
        """By seed, of the seeds that are complete."""
        arms = {1: self.arms} if isinstance(self.arms, Arm) else self.arms
        doses = [_differences(arm, records, self.first, self.second, self.place) for arm in arms.values()]
        seeds = sorted(set.intersection(*map(set, doses)))
        if len(doses) == 1:
            return [doses[0][seed] for seed in seeds]
        return [log2_slope(list(arms), [dose[seed] for dose in doses]) for seed in seeds]


def _differences(arm: Arm, records: Records, first: str, second: str, place: str) -> dict[int, float]:
    ours, theirs = (arm.errors(records, label, place) for label in (first, second))
    return {seed: ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()}


PREDICTIONS = (
    Prediction("1a", CROPS, "CONST", "AdaLoss", "end", 1),
    Prediction("1a", CROPS, "AdaLoss", OPT, "end", 1),
    Prediction("1b", FEW, "CONST", "AdaLoss", "end", -1),
    *(
        Prediction("2", arm, first, second, place, sign)
        for arm in (POWER_SVHN, POWER_CIFAR)
        for first, second in (("p = ½", "p = 2"), ("CONST", "static law"))
        for place, sign in (("end", 1), ("1/4", -1))
    ),
    *(
        Prediction(number, arms, rival, "AdaLoss", "end", 1, within=0.1)
        for number, arms in (("3", SVHN), ("4", CIFAR))
        for rival in ("CONST", "LINEAR")
    ),
    Prediction("5", STEPS, "LINEAR", "AdaLoss", "end", 1, within=0.7),
)
PLANNED = len(PREDICTIONS) + 6
"""With those of experiment 6, whose runs come later: three on each of two data sets."""
KILLED = {
    "1a": "CIFAR-100 is outside the paper's regime because it memorizes",
    "1b": "memorizing alone turns the order round",
    "2": "it is the concentration of weight at late exits",
    "3": "the differences grow with training on SVHN",
    "4": "the differences grow with training on narrow CIFAR-10",
    "5": "LINEAR ties because of the linear schedule",
}
"""The explanations, by experiment; the plan says what kills each."""


def runs(preset: str) -> list[Run]:
    """Arm by arm and seed by seed, all schemes."""
    if preset != "laptop":
        return []
    every = (arm.run(scheme, seed) for arm in ARMS for seed in range(arm.seeds) for scheme in arm.schemes)
    return list({run.name: run for run in every}.values())  # two arms share SVHN with 12 epochs


def show(preset: str, records: Records) -> Section:
    """Each prediction with its outcome, and the errors of every arm."""
    section = Section(TITLE, CLAIM, records.of(runs(preset)), len(runs(preset)))
    if preset != "laptop":
        return section
    found = {each: each.values(records) for each in PREDICTIONS}
    complete = {each: values for each, values in found.items() if len(values) == _seeds(each)}
    significant = holm({each: Interval.of(values) for each, values in complete.items()}, PLANNED)
    rows = []
    for each, values in found.items():
        outcome = _outcome(each, values, significant.get(each)) if each in complete else "not finished"
        rows.append([each.number, each.label, Interval.of(values).percent() if values else "–", len(values), outcome])
        if each in complete:
            said = f"**{each.number}.** Predicted: {each.label}. {outcome.capitalize()}."
            section.verdicts.append(said + _explained(each, values, records))
    section.claims = _claims(records)
    section.text.append(
        "Paired differences of test errors in points (slopes: points per doubling of the epochs) with uncorrected 95 % "
        f"intervals; outcomes after Holm's correction over the plan's {PLANNED} tests, those of experiments that"
        " have not begun included; until all have ended an outcome may still become confirmed."
    )
    section.table(["", "predicted", "found", "n", "outcome"], rows)
    section.text.append("Test errors in %, mean ± standard deviation over seeds, at 1/4 of the cost and at the end.")
    section.table(["", "1/4", "end", "n"], _means(records))
    return section


def _explained(each: Prediction, values: Sequence[float], records: Records) -> str:
    """What the outcome means for the explanation that the plan says it can kill; nothing for those that only describe.

    Of experiment 2, p = ½ against p = 2 at the end decides. A difference counts by its uncorrected interval.
    """
    if each.number == "2" and (each.first, each.place) != ("p = ½", "end"):
        return ""
    tests = [Interval.of([each.sign * value for value in values])]
    if each.second == OPT:  # "or OPT not the best"
        rivals = [_differences(CROPS, records, label, OPT, "end") for label in BASES.values()]
        tests += [Interval.of(list(found.values())) for found in rivals if len(found) == CROPS.seeds]
    if any(found.high < 0 for found in tests) or (each.number in ("3", "4") and _tied(each, tests[0])):
        state = "dead"
    elif any(found.mean <= 0 for found in tests):
        state = "not supported, the mean is on the wrong side; the interval does not kill it"
    else:
        state = "still possible"
    return f" That {KILLED[each.number]}: {state}."


def _tied(each: Prediction, found: Interval) -> bool:
    return each.within is not None and -each.within <= 100 * found.low and 100 * found.high <= each.within


def _claims(records: Records) -> list[Claim]:
    """The paper's claims on CIFAR-100 with crops, once all of its seeds are trained: nothing is judged before."""
    made, where = [], CROPS.label
    pairs = (("AdaLoss", "CONST", "end"), ("AdaLoss", "LINEAR", "end"), ("CONST", "AdaLoss", "1/4"))
    for better, worse, place in pairs:
        values = list(_differences(CROPS, records, worse, better, place).values())
        made.append((values, compared(better, worse, PLACES[place], where, values)))
    errors = {label: CROPS.errors(records, label, "end") for label in CROPS.schemes.values()}
    for scheme in BASES.values():
        both = sorted(errors[scheme].keys() & errors[OPT].keys())
        values = [errors[scheme][seed] / errors[OPT][seed] - 1 for seed in both]
        made.append((values, over_opt(scheme, where, values)))
    done = [claim if len(values) == CROPS.seeds else _unfinished(claim, len(values)) for values, claim in made]
    return done if any(values for values, _ in made) else []


def _unfinished(claim: Claim, seeds: int) -> Claim:
    return replace(claim, ours="–", verdict=f"not tried; {seeds} of {CROPS.seeds} seeds are trained so far")


def _seeds(each: Prediction) -> int:
    arms: Sequence[Arm] = [each.arms] if isinstance(each.arms, Arm) else list(each.arms.values())
    return min(arm.seeds for arm in arms)


def _outcome(each: Prediction, values: Sequence[float], significant: bool | None) -> str:
    found = Interval.of(values)
    tie = f"; a tie: the interval lies within ±{each.within:g}" if _tied(each, found) else ""
    if significant:
        return ("confirmed" if found.mean * each.sign > 0 else "contradicted") + tie
    return f"inconclusive{tie}; {len(values)} seeds could have shown {100 * smallest_effect(values):.2f} points"


def _means(records: Records) -> list[list[object]]:
    rows = []
    for arm in ARMS:
        for label in arm.schemes.values():
            early, late = (list(arm.errors(records, label, place).values()) for place in PLACES)
            if late:
                rows.append([f"{arm.label}, {label}", spread(early), spread(late), len(late)])
    return rows
