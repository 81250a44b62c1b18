"""Heads for the exits of converted models, by the shape of the features there."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from anytime.conversion.graph import CLASS_TOKENS
from anytime.errors import AnytimeError
from anytime.models.layers import LinearHead


def make_head(
    head: Callable[[tuple[int, ...], int], nn.Module] | None,
    model: nn.Module,
    logits: Tensor,
    shape: tuple[int, ...],
    name: str,
    batch_dim: int,
    class_token: bool,
    mask: str | None,
    example: Any,
) -> tuple[nn.Module, bool]:
    """A head for an exit, where and of the type that the answers are, and whether it takes the padding mask.

    Args:
        head: the user's way to make one, if any.
        model: the model that gets the exit.
        logits: its answer to the example.
        shape: of the features at the exit.
        name: of the module that gives them.
        batch_dim: their dimension along which the samples are.
        class_token: whether a class token, if the model has one, comes first in them.
        mask: the name of the padding mask in the example, if there is one.
        example: the input.
    """
    classes = logits.shape[-1]
    if head is not None:
        return head(shape, classes).to(logits), False
    channels = _channels(shape, model.get_submodule(name))
    masked = mask is not None and len(shape) == 3 and channels == 2 and tuple(example[mask].shape) == shape[:2]
    if logits.ndim == 3 and len(shape) == 3 and logits.shape[:2] == shape[:2]:
        made, masked = VectorHead(shape[-1], classes), False  # an answer for each token
    elif logits.ndim > 2:
        raise AnytimeError(
            f"the model's answer has the shape {tuple(logits.shape)}, for which there is no head; give one: "
            "convert(…, head=lambda shape, num_classes: …)"
        )
    elif len(shape) == 2:
        made = VectorHead(shape[-1], classes)
    elif len(shape) == 3 and channels == 2:
        names = {name.rpartition(".")[2] for name, _ in model.named_parameters()}
        token = class_token and bool(names & CLASS_TOKENS) and batch_dim == 0 and not masked
        made = TokenHead(shape[-1], classes, batch_dim, token)
    elif len(shape) == 4 and channels == 1:
        made = LinearHead(shape[1], classes)
    elif len(shape) in (3, 4, 5):
        made = MapHead(shape[channels], classes, len(shape) - 2, channels)
    else:
        raise AnytimeError(f"there is no head for features of shape {shape}; give one: convert(…, head=…)")
    return made.to(logits), masked


def _channels(shape: tuple[int, ...], module: nn.Module) -> int:
    """Which dimension holds the channels: that which the last layer of the module gives, as far as it can be told."""
    for layer in reversed(list(module.modules())):
        if shape[1] in (getattr(layer, "out_channels", None), getattr(layer, "num_features", None)):
            return 1
        if shape[-1] in (getattr(layer, "out_features", None), *getattr(layer, "normalized_shape", ())[-1:]):
            return len(shape) - 1
    if len(shape) < 4:
        return len(shape) - 1
    return len(shape) - 1 if len(set(shape[1:-1])) == 1 and shape[-2] != shape[-1] else 1


class VectorHead(nn.Sequential):
    """Layer norm – linear; of tokens, each by itself."""

    def __init__(self, features: int, num_classes: int) -> None:
        super().__init__(nn.LayerNorm(features), nn.Linear(features, num_classes))


class TokenHead(nn.Module):
    """Layer norm – class token, or mean over those that are no padding – linear."""

    def __init__(self, features: int, num_classes: int, batch_dim: int = 0, class_token: bool = False) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(features), nn.Linear(features, num_classes)
        self.batch_dim, self.class_token = batch_dim, class_token

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits."""
        tokens = tokens.movedim(self.batch_dim, 0)
        if self.class_token:
            return self.fc(self.norm(tokens[:, 0]))
        tokens = self.norm(tokens)
        if mask is None:
            return self.fc(tokens.mean(1))
        weight = mask.to(tokens.dtype)[..., None]
        return self.fc((tokens * weight).sum(1) / weight.sum(1).clamp(min=1))


class MapHead(nn.Module):
    """The paper's predictor, BN – ReLU – pool – linear, for maps of other dimensions or with channels last."""

    def __init__(self, channels: int, num_classes: int, dims: int, channel_dim: int) -> None:
        super().__init__()
        self.bn = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1](channels)
        self.fc, self.channel_dim = nn.Linear(channels, num_classes), channel_dim

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc(F.relu(self.bn(x.movedim(self.channel_dim, 1))).flatten(2).mean(2))
