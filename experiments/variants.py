"""AdaLoss with other settings than the paper's, and on a wider network, against LINEAR."""

from experiments.comparison import add_differences, add_errors, find
from experiments.presets import MODELS, make
from experiments.records import Records, Section
from experiments.runner import Run

TITLE = "AdaLoss's settings against LINEAR"
CLAIM = (
    "AdaLoss is better than LINEAR at 1/2, 3/4 and all of the cost. γ = 0.05 was chosen on validation data; the final "
    "weight is doubled on ILSVRC only; neither these nor the averages' momentum are varied in a table."
)
BASE = "LINEAR"
SCHEMES = {"const": "CONST", "linear": BASE, "adaloss": "AdaLoss (γ 0.05, momentum 0.9)"}
VARIANTS = {
    "adaloss:gamma=0": "AdaLoss, γ 0",
    "adaloss:gamma=0.2": "AdaLoss, γ 0.2",
    "adaloss:momentum=0.99": "AdaLoss, momentum 0.99",
    "adaloss:final_extra=1": "AdaLoss, final weight doubled",
}
SETTINGS: dict[str, list[tuple[str, str, dict[str, str]]]] = {
    "minutes": [],
    "laptop": [(MODELS["svhn"], "svhn", SCHEMES | VARIANTS), ("resann-5-16-patch2", "svhn", SCHEMES)],
    "paper": [("resann-9-16", "svhn", SCHEMES | VARIANTS), ("resann-9-32", "svhn", SCHEMES)],
}
"""Network, data set and schemes."""
SEEDS = {"laptop": 3, "paper": 1}


def runs(preset: str) -> list[Run]:
    """Seed by seed all schemes on the narrow network, then on the wide one."""
    return [
        make(preset, model, data, scheme, seed)
        for model, data, schemes in SETTINGS[preset]
        for seed in range(SEEDS[preset])
        for scheme in schemes
    ]


def show(preset: str, records: Records) -> Section:
    """Test errors at fractions of the cost, and paired with LINEAR's of the same seed."""
    section = Section(TITLE, CLAIM, records.of(runs(preset)), len(runs(preset)))
    for model, data, schemes in SETTINGS[preset]:
        found = find(preset, records, [model], data, schemes, SEEDS[preset])
        if set(schemes.values()) <= set(found):
            add_errors(section, f"{data} ({model})", found)
            add_differences(section, f"{data} ({model})", found, BASE)
    return section
