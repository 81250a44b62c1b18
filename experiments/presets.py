"""The settings that experiments run in: the paper's own, for GPUs, and one that two processor cores can afford."""

from dataclasses import asdict
from typing import Any

from anytime import Recipe
from anytime.training.recipe import RECIPES
from experiments.runner import Run

PRESETS = {
    "minutes": "SVHN, one seed, a quarter of an hour on two processor cores",
    "laptop": "all experiments, days on two processor cores",
    "paper": "the paper's own setting, for GPUs",
}
DATA_SETS = ("svhn", "cifar10", "cifar100")
"""From easy to hard."""
DATA_NAMES = {"svhn": "SVHN", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ILSVRC"}
NARROW = "resann-5-8-patch2"
MODELS = {"svhn": NARROW, "cifar10": "resann-5-16-patch2", "cifar100": "resann-5-16-patch2"}
"""The network of each data set on a laptop; on CIFAR-10 the narrow one is trained too."""
_IMAGES = {"svhn": 15000, "cifar10": 25000, "cifar100": 15000}
_EPOCHS = {"svhn": 12, "cifar10": 60, "cifar100": 40}
_BATCH_SIZES = {"svhn": 60, "cifar10": 125, "cifar100": 125}
"""They divide the number of images: ``torch.compile`` is fastest if all batches have one size."""
ABOUT = {
    "laptop": """\
Parts of the data sets: `cifar10-30k` has the first 3,000 training images of each class, `cifar100-20k` the first 200,
both the whole test set; `svhn-20k` has 20,000 random training and 10,000 random test images. 5,000 training images are
kept for validation: 25,000 (CIFAR-10) or 15,000 (others) are left. With the whole data sets of the Hub, as many are
drawn. Whole 32×32 images through a patch stem, padding and cropping (not on CIFAR-100), mirroring on CIFAR; SGD with a
learning rate of 0.1 that rises for 15 % of the training and then falls linearly to 0; SVHN 12 epochs of batch 60,
CIFAR-10 60 and CIFAR-100 40 epochs of batch 125. CIFAR-100 is not cropped because its measure is the training loss
(Fig. 2a), which falls sooner without. The setting was chosen by pilot runs, so that the last exit's training loss
becomes small against the first one's; the last table of `table_weights` says where the losses are. An earlier setting
(16×16 images, 8 epochs on CIFAR) showed no consistent difference between AdaLoss and CONST on CIFAR: its losses had
hardly moved apart. `--preset paper` is the paper's own setting; it has not been run.""",
    "paper": """The paper's own setting: all images, its models, its recipes.""",
}
ABOUT["minutes"] = ABOUT["laptop"]


def make(preset: str, model: str, data: str, scheme: str, seed: int = 0) -> Run:
    """A run of an experiment in a preset's setting.

    Args:
        preset: ``minutes`` and ``laptop`` share a setting, ``paper`` is the paper's.
        model: a name that ``create_model`` knows.
        data: a data set's name.
        scheme: the name of a weight scheme or of a control.
        seed: of everything.
    """
    if preset == "paper":
        return Run(model, data, scheme, seed, None, _changes(RECIPES[data if data in RECIPES else "cifar"]))
    recipe: dict[str, Any] = {"epochs": _EPOCHS[data], "batch_size": _BATCH_SIZES[data]}
    recipe |= {"schedule": "linear", "warmup": 0.15}
    if data == "svhn":  # mirrored digits are no digits
        recipe["flip"] = False
    if data == "cifar100":  # its measure is the training loss, which falls sooner without crops
        recipe["pad"] = 0
    return Run(model, data, scheme, seed, _IMAGES[data], recipe)


def _changes(recipe: Recipe) -> dict[str, Any]:
    """The epochs and what differs from the defaults: a later field of recipes does not change older records."""
    defaults = asdict(Recipe())
    return {key: value for key, value in asdict(recipe).items() if key == "epochs" or value != defaults[key]}
