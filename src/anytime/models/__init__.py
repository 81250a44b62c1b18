"""The paper's networks by name: one architecture family per file."""

import difflib
import fnmatch
import inspect
from typing import Any

from anytime.errors import AnytimeError
from anytime.models import convann, denseann, msdnet, resann
from anytime.models.convann import ConvANN
from anytime.models.denseann import DenseANN
from anytime.models.layers import LinearHead, MLPHead
from anytime.models.msdnet import BlockMSDNet, MSDNet
from anytime.models.resann import BottleneckResANN, ResANN
from anytime.network import AnytimeNetwork

__all__ = [
    "BlockMSDNet",
    "BottleneckResANN",
    "ConvANN",
    "DenseANN",
    "LinearHead",
    "MLPHead",
    "MSDNet",
    "ResANN",
    "create_model",
    "list_models",
]

_FAMILIES = (resann, denseann, msdnet, convann)
"""Each has ``MODELS``, the named networks and where the paper has them, and ``from_name``, which also knows the names
that follow a pattern."""

_OTHERS = (
    "`anytime models` lists those of the paper; resann-N-C builds other sizes, e.g. resann-3-16; models of other "
    "libraries: --model timm:resnet18 on the command line, or anytime.convert(model, example)"
)


def list_models(pattern: str = "*") -> dict[str, str]:
    """The named models and the paper's section that each comes from; ``create_model`` builds other sizes too.

    Examples:
        >>> list(list_models("resann-9-*"))
        ['resann-9-16', 'resann-9-32', 'resann-9-64', 'resann-9-128']
    """
    models = {name: source for family in _FAMILIES for name, source in family.MODELS.items()}
    return {name: models[name] for name in fnmatch.filter(models, pattern)}


def create_model(name: str, **options: Any) -> AnytimeNetwork:
    """Build a network by its name.

    Args:
        name: one of ``list_models()``, or another size of the same family: ``resann-3-16`` is ResANN(3, 16).
            Upper or lower case.
        options: the architecture's own: ``num_classes``, ``in_channels``, ``period`` or ``exits``, …

    Examples:
        >>> create_model("resann-9-16", num_classes=100).exits
        27
    """
    if not isinstance(name, str) or len(name) > 100:
        raise AnytimeError(f"model name {str(name)[:100]!r}: it must be a string of at most 100 characters")
    name = name.lower()
    found = next((found for family in _FAMILIES if (found := family.from_name(name))), None)
    if found is None:
        # Names of other sizes are so alike that a lower cutoff would offer any of them.
        near = difflib.get_close_matches(name, list_models(), n=3, cutoff=0.85)
        hint = f"did you mean {', '.join(near)}? `anytime models` lists them all" if near else _OTHERS
        raise AnytimeError(f"unknown model {name!r}; {hint}")
    architecture, arguments = found
    takes = [p for p in inspect.signature(architecture).parameters if p not in arguments or p == "num_classes"]
    for option in options:
        if option not in takes:
            raise AnytimeError(f"{name} has no option {option!r}; it takes {', '.join(takes)}")
    net = architecture(**{**arguments, **options})
    net.config = {"model": name, **options}
    return net
