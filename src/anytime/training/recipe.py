"""Training recipes: the paper's numbers (Sec. 5.1), each of which can be changed."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from torch import nn

from anytime.data.augmentation import Augmentation
from anytime.data.dataset import Data
from anytime.data.images import Images
from anytime.errors import AnytimeError, check_integer, check_number, shown
from anytime.network import Network


@dataclass(frozen=True)
class Recipe:
    """SGD (or AdamW), a learning-rate schedule, and the augmentation of the training images of a ``Data``.

    Args:
        epochs: how often each image is seen.
        lr: the highest learning rate.
        batch_size: of a ``Data``, the largest number of images per step: an epoch is divided into equal steps. Other
            batches come as they are.
        momentum: of SGD; AdamW's first beta.
        weight_decay: L2 penalty on every parameter that has a gradient.
        schedule: how the learning rate falls: ``steps`` divides it by 10 at ``drops``, from one epoch to the next, as
            the paper does; ``linear`` and ``cosine`` lower it to 0 a little with every step, which short trainings
            gain from.
        warmup: fraction of the training in which the learning rate rises linearly from 0; 0 for none.
        drops: where ``steps`` divides the learning rate by 10, as fractions of all epochs.
        pad: training images are padded by this many pixels and cropped at random to their size; 0 for none.
        flip: whether training images are mirrored at random.
        blur: largest standard deviation of a random Gaussian blur of training images, in pixels; 0 for none.
        optimizer: ``sgd``, the paper's; ``adamw`` for transformers, with a learning rate of about 0.001.
        clip: largest norm of all gradients together: larger ones are scaled down to it; 0 for none.
        ema: decay of an exponential moving average of the weights, e.g. 0.999; the averages are what is validated,
            tested and left in the network at the end; 0 for none.
        label_smoothing: share of the target probability that is spread over all classes, for cross-entropy in training.
        backbone: the learning rate of what is not a head, as a share of ``lr``: 0.1 for models that are trained
            already.
        crop: whether streamed training images are cropped at random; the center is kept otherwise.
        least_steps: for the heads of a frozen network, whose features are computed once: each epoch goes through them
            so often that the training has at least so many steps; 0 for once.
    """

    epochs: int = 300
    lr: float = 0.1
    batch_size: int = 64
    momentum: float = 0.9
    weight_decay: float = 1e-4
    schedule: str = "steps"
    warmup: float = 0.0
    drops: tuple[float, ...] = (0.5, 0.75)
    pad: int = 4
    flip: bool = True
    blur: float = 0.0
    optimizer: str = "sgd"
    clip: float = 0.0
    ema: float = 0.0
    label_smoothing: float = 0.0
    backbone: float = 1.0
    crop: bool = True
    least_steps: int = 0

    def __post_init__(self) -> None:
        for name, least in {"epochs": 1, "batch_size": 1, "pad": 0, "least_steps": 0}.items():
            check_integer(name, getattr(self, name), least)
        for name in ("lr", "momentum", "weight_decay", "blur", "clip", "backbone"):
            check_number(name, getattr(self, name))
        for name in ("ema", "label_smoothing"):
            check_number(name, getattr(self, name), below=1)
        for name in ("flip", "crop"):
            if not isinstance(getattr(self, name), bool):
                raise AnytimeError(f"{name}={shown(getattr(self, name))} must be True or False")
        for drop in self.drops:
            check_number("drops", drop)
        check_number("warmup", self.warmup, below=1)
        for name, known in {"optimizer": ("sgd", "adamw"), "schedule": ("steps", "linear", "cosine")}.items():
            if getattr(self, name) not in known:
                raise AnytimeError(f"{name}={getattr(self, name)!r} must be one of {', '.join(known)}")

    def lr_at(self, epoch: float) -> float:
        """The learning rate at a point of the training: epochs done, 2.5 in the middle of the third.

        Examples:
            >>> [round(Recipe(epochs=8).lr_at(e), 4) for e in range(8)]
            [0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
            >>> [round(Recipe(epochs=8, schedule="linear", warmup=0.25).lr_at(e), 3) for e in (0, 1, 2, 5, 8)]
            [0.0, 0.05, 0.1, 0.05, 0.0]
        """
        done = epoch / self.epochs
        if done < self.warmup:
            return self.lr * done / self.warmup
        if self.schedule == "steps":
            return self.lr * 0.1 ** sum(int(epoch) >= drop * self.epochs for drop in self.drops)
        left = (1 - done) / (1 - self.warmup)
        return self.lr * (left if self.schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * left))

    def facts(self) -> dict[str, Any]:
        """Its options, as JSON holds them."""
        return asdict(self) | {"drops": list(self.drops)}

    @property
    def augmentation(self) -> Augmentation:
        """How training images are changed at random."""
        return Augmentation(self.pad, self.flip, self.blur, self.crop)


RECIPES = {
    "cifar": Recipe(),
    "svhn": Recipe(epochs=60, flip=False, blur=1.0),
    "imagenet": Recipe(epochs=90, batch_size=256, drops=(1 / 3, 2 / 3), pad=0),
    "digits": Recipe(epochs=30, batch_size=32, pad=1, flip=False),
    "heads": Recipe(
        epochs=5,
        lr=0.001,
        batch_size=32,
        weight_decay=0.01,
        schedule="cosine",
        warmup=0.1,
        pad=0,
        flip=False,
        optimizer="adamw",
        crop=False,
        least_steps=1000,
    ),
    "finetuning": Recipe(
        epochs=10,
        lr=0.001,
        batch_size=32,
        weight_decay=0.01,
        schedule="cosine",
        warmup=0.1,
        pad=0,
        optimizer="adamw",
        clip=1.0,
        backbone=0.1,
    ),
}
"""The paper's for its data sets, and one for the digits. The paper does not state batch sizes: 64 is what its authors'
scripts use on CIFAR, 256 is usual on ILSVRC. Streamed images are cropped at random, so they need no padding. ``heads``
is ours, for the heads of a frozen network: without augmentation, so that the features are computed once; and so is
``finetuning``, for pretrained models whose heads have been trained."""


def recipe_for(data: str, streamed: bool) -> str:
    """The name of the recipe that suits a data set.

    Examples:
        >>> recipe_for("svhn-20k", streamed=False), recipe_for("flowers", streamed=True)
        ('svhn', 'imagenet')
    """
    named = next((name for name in RECIPES if name in data.lower() and name not in ("heads", "finetuning")), None)
    return named or ("imagenet" if streamed else "cifar")


def recipe_with(recipe: Recipe | None, data: Any, changes: Mapping[str, Any], net: Network | None = None) -> Recipe:
    """A recipe, by default the one that suits the network and the data, with some of its options changed.

    Pretrained models whose heads alone are trained, or which are fine-tuned, have recipes of their own. Batches of
    other loaders than a ``Data`` get the paper's recipe; to augment them is up to the loader.

    Examples:
        >>> from anytime import load_data
        >>> recipe_with(None, load_data("digits"), {"epochs": 5}).epochs
        5
    """
    options = [option.name for option in fields(Recipe)]
    for name in changes:
        if name not in options:
            alike = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
            near = ["lr"] if name == "learning_rate" else alike  # the command line's name for it
            hint = f"did you mean {near[0]}=?" if near else f"a recipe has: {', '.join(options)}"
            raise AnytimeError(f"unknown argument {name}=; {hint}")
    if not isinstance(data, Data):
        if asked := [name for name in ("pad", "flip", "blur") if changes.get(name)]:
            raise AnytimeError(f"{asked[0]}= is for images of an anytime.Data; augment other batches in their loader")
        if "batch_size" in changes and not (net and net.keeps_features):
            raise AnytimeError("batch_size= is for an anytime.Data; set it in the DataLoader")
        recipe = recipe or (RECIPES[net.recipe] if net and net.recipe else Recipe())
    elif recipe is None and net and net.recipe:
        recipe = RECIPES[net.recipe]
    elif recipe is None:
        recipe = RECIPES[recipe_for(data.name, streamed=not isinstance(data.train, Images))]
    if not isinstance(recipe, Recipe):
        raise AnytimeError(
            f"recipe={recipe!r} must be an anytime.Recipe; single options are arguments of their own, e.g. epochs=10"
        )
    return replace(recipe, **changes)


def create_optimizer(recipe: Recipe, net: Network, learned: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The recipe's optimizer, for the network's parameters and those that a weight scheme learns.

    Each group has a ``share``: of the recipe's learning rate.
    """
    heads = {id(weight) for _, head in net.trained_units if head is not None for weight in head.parameters()}
    shares = ((weight, 1.0 if id(weight) in heads else recipe.backbone) for weight in net.parameters())
    runs = [(share, [weight for weight, _ in run]) for share, run in groupby(shares, itemgetter(1))]  # in their order
    groups = [{"params": run, "weight_decay": recipe.weight_decay, "share": share} for share, run in runs]
    if learned:
        groups.append({"params": learned, "weight_decay": 0.0, "share": 1.0})
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.lr, betas=(recipe.momentum, 0.999), fused=True)
    return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum, fused=True)
