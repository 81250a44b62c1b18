"""Load the weights of public checkpoints, by name, where the layers correspond."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anytime.errors import AnytimeError
from anytime.models.denseann import DenseANN
from anytime.models.resann import BottleneckResANN


@dataclass(frozen=True)
class Pretrained:
    """What ``load_pretrained`` did. Print it."""

    matched: dict[str, str]
    """By the checkpoint's name, this network's parameter or buffer that it went into."""
    unused: list[str]
    """Names in the checkpoint that correspond to nothing here, or that have another shape."""
    untouched: list[str]
    """Parameters and buffers of this network that keep what they had: the new exits' heads, for instance."""

    def __str__(self) -> str:
        lines = [f"{len(self.matched)} tensors loaded"]
        for title, names in {
            "in the checkpoint but not used": self.unused,
            "kept as they were": self.untouched,
        }.items():
            shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            lines.append(f"{len(names)} {title}" + (f": {shown}" if names else ""))
        return "\n".join(lines)


def load_pretrained(net: BottleneckResANN | DenseANN, state: Mapping[str, Tensor]) -> Pretrained:
    """Start from pre-trained features: fill a network's trunk, and its last exit, from a public checkpoint.

    ResANN26, 50, 101 take timm's pre-activation ResNets (such as ``resnetv2_50``); DenseANNs take
    torchvision's and timm's DenseNets. Tensors go where the same layer is, by its name; nothing is ever filled by
    position. The last exit's linear layer is filled too where the number of classes agrees.

    Args:
        net: the network to fill, in place.
        state: the checkpoint's state dict.

    Examples:
        >>> import anytime
        >>> net = anytime.create_model("denseann121", num_classes=10)
        >>> public = {"features.conv0.weight": torch.ones(64, 3, 7, 7), "classifier.bias": torch.ones(1000)}
        >>> filled = anytime.load_pretrained(net, public)
        >>> filled.matched
        {'features.conv0.weight': 'stages.0.0.0.0.weight'}
        >>> filled.unused
        ['classifier.bias']
    """
    modules, own = net.foreign_names(), net.state_dict()
    if not modules:
        raise AnytimeError(
            f"{type(net).__name__} corresponds to no public checkpoint that is known here; resann26, resann50, "
            "resann101 and the denseanns do"
        )
    matched: dict[str, str] = {}
    for name, tensor in state.items():
        # Old torchvision checkpoints say norm.1 where newer ones say norm1.
        module, _, leaf = re.sub(r"(norm|conv)\.([12])\.", r"\1\2.", name).rpartition(".")
        target = f"{modules.get(module)}.{leaf}"
        if target in own and _same_shape(tensor, own[target]):
            with torch.no_grad():
                own[target].copy_(tensor.reshape(own[target].shape))
            matched[name] = target
    if not matched:
        theirs, ours = next(iter(state), "nothing"), next(iter(modules))
        raise AnytimeError(
            f"no name in the checkpoint corresponds to a layer of this network: it has {theirs!r} and the like, "
            f"expected are {ours + '.weight'!r} and the like (post-activation ResNets, e.g. torchvision's, do not "
            "correspond)"
        )
    filled = set(matched.values())
    return Pretrained(matched, [n for n in state if n not in matched], [n for n in own if n not in filled])


def _same_shape(theirs: Tensor, ours: Tensor) -> bool:
    """Whether two shapes are the same; a 1×1 convolution also fits a linear layer (timm's classifier is one)."""
    if theirs.ndim == 4 and ours.ndim == 2:
        return tuple(theirs.shape) == (*ours.shape, 1, 1)
    return theirs.shape == ours.shape
