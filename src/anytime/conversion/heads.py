"""Heads for the exits of converted models: from the features at an exit to an output shaped as the model's own."""

from collections.abc import Callable
from functools import partial
from math import isqrt, prod

import torch.nn.functional as F
from torch import Tensor, nn

from anytime.conversion.graph import CLASS_TOKENS
from anytime.errors import AnytimeError
from anytime.models.layers import LinearHead

HeadMaker = Callable[[tuple[int, ...], int], nn.Module]
"""``head(shape, outputs)``: a head for features of this shape, with this number of outputs (classes)."""


class HeadFactory:
    """Makes the heads of one model, by default or as the user does.

    Args:
        model: the model that gets exits.
        output: its output for the example.
        image: height and width of the example's image.
        head: the user's function that makes a head, or None for the default heads.
    """

    def __init__(
        self, model: nn.Module, output: Tensor, image: tuple[int, ...] = (), head: HeadMaker | None = None
    ) -> None:
        self.model, self.output, self.image, self.head = model, output, image, head
        shape = tuple(output.shape)
        self.channel_dim = _channel_dim(shape, model, default=2 if len(shape) == 3 else 1)
        self.outputs = shape[self.channel_dim]
        names = {name.rpartition(".")[2] for name, _ in model.named_parameters()}
        self.class_token = bool(names & CLASS_TOKENS)

    def fits(self, shape: tuple[int, ...], name: str) -> bool:
        """Whether a head can be made for features of this shape after this module."""
        return self.head is not None or self._default(shape, name, False) is not None

    def make(self, features: Tensor, name: str, class_token: bool, mask: Tensor | None) -> tuple[nn.Module, bool]:
        """A head, checked on the features, and whether it takes the padding mask.

        Args:
            features: for the example, samples first.
            name: the module that returns them.
            class_token: whether the model's class token, if it has one, is among them.
            mask: the padding mask of the example, if it has one.
        """
        shape = tuple(features.shape)
        masked = False
        if self.head is not None:
            made = self._call(self.head, shape)
        else:
            fits_mask = mask is not None and tuple(mask.shape) == shape[:2]
            build = self._default(shape, name, class_token and self.class_token and not fits_mask)
            if build is None:
                raise self.no_default(shape, name)
            made = build()
            masked = fits_mask and isinstance(made, TokenHead)
        made = made.to(self.output)
        self._check(made.eval(), features, name, mask if masked else None)
        return made, masked

    def _call(self, head: HeadMaker, shape: tuple[int, ...]) -> nn.Module:
        try:
            made = head(shape, self.outputs)
        except Exception as error:
            raise AnytimeError(f"head({shape}, {self.outputs}) fails: {type(error).__name__}: {error}") from error
        if not isinstance(made, nn.Module):
            raise AnytimeError(f"head({shape}, {self.outputs}) returned {type(made).__name__}; expected an nn.Module")
        return made

    def no_default(self, shape: tuple[int, ...], name: str) -> AnytimeError:
        """The error that there is no default head here."""
        return AnytimeError(
            f"there is no default head from features of shape {shape} (after {name}) to the model's output of shape "
            f"{tuple(self.output.shape)}; pass one: convert(…, head=lambda shape, outputs: nn.Module)"
        )

    def _check(self, head: nn.Module, features: Tensor, name: str, mask: Tensor | None) -> None:
        given = f"the head after {name} gets features of shape {tuple(features.shape)}"
        try:
            output = head(features.clone()) if mask is None else head(features.clone(), mask)
        except Exception as error:
            raise AnytimeError(f"{given} and fails: {str(error).partition(chr(10))[0]}") from error
        if not isinstance(output, Tensor) or output.shape != self.output.shape:
            returned = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise AnytimeError(
                f"{given} and returns {returned}; expected the shape of the model's own output, "
                f"{tuple(self.output.shape)}"
            )

    def _default(self, shape: tuple[int, ...], name: str, class_token: bool) -> Callable[[], nn.Module] | None:
        """Builds the head for these two shapes; None where there is no obvious one."""
        last = len(shape) - 1
        square = len(set(shape[1:-1])) == 1 and shape[-2] != shape[-1]  # N × H × H × C has its channels last
        channels = _channel_dim(shape, self.model.get_submodule(name), default=1 if last > 2 and not square else last)
        width, outputs, output = shape[channels], self.outputs, tuple(self.output.shape)
        tokens = shape[1] if len(shape) == 3 and channels == 2 else 0
        if len(shape) > 5:
            return None
        if len(output) == 2:
            if len(shape) == 2:
                return partial(VectorHead, width, outputs)
            if tokens:
                return partial(TokenHead, width, outputs, class_token)
            if len(shape) == 4 and channels == 1:
                return partial(LinearHead, width, outputs)
            return partial(MapHead, width, outputs, len(shape) - 2, channels)
        if self.channel_dim == len(output) - 1:
            same = channels == last and shape[:-1] == output[:-1]
            return partial(VectorHead, width, outputs) if same else None
        if len(shape) == len(output):
            return partial(PixelHead, width, outputs, output[2:], channels, self.image)
        grid = _grid(tokens, output[2:], self.class_token) if tokens and len(output) == 4 else None
        return partial(GridHead, width, outputs, grid, output[2:], self.image) if grid else None


def _channel_dim(shape: tuple[int, ...], module: nn.Module, default: int) -> int:
    """Which dimension holds the channels: the one that the module's last layers produce, if one of them says so."""
    for layer in reversed(list(module.modules())):
        if shape[1] in (getattr(layer, "out_channels", None), getattr(layer, "num_features", None)):
            return 1
        if shape[-1] in (getattr(layer, "out_features", None), *getattr(layer, "normalized_shape", ())[-1:]):
            return len(shape) - 1
    return default


def _grid(tokens: int, size: tuple[int, ...], class_token: bool) -> tuple[int, int] | None:
    """Rows and columns of the tokens of an image of this size; class and register tokens come before them."""
    rows = isqrt(tokens * size[0] // size[1])
    columns = rows * size[1] // size[0]
    exact = rows * size[1] == columns * size[0] and rows > 0
    return (rows, columns) if exact and (rows * columns == tokens or class_token) else None


class VectorHead(nn.Sequential):
    """Layer norm – linear: of a vector, or of each token."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__(nn.LayerNorm(features), nn.Linear(features, outputs))


class TokenHead(nn.Module):
    """Layer norm – class token, or mean over the tokens that are not padding – linear."""

    def __init__(self, features: int, outputs: int, class_token: bool = False) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(features), nn.Linear(features, outputs)
        self.class_token = class_token

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits."""
        if self.class_token:
            return self.fc(self.norm(tokens[:, 0]))
        tokens = self.norm(tokens)
        if mask is None:
            return self.fc(tokens.mean(1))
        weight = mask.to(tokens.dtype)[..., None]
        return self.fc((tokens * weight).sum(1) / weight.sum(1).clamp(min=1))


class MapHead(nn.Module):
    """The paper's predictor, BN – ReLU – pool – linear, for maps of 1 or 3 dimensions or with channels last."""

    def __init__(self, channels: int, outputs: int, dims: int, channel_dim: int) -> None:
        super().__init__()
        self.bn = _NORMS[dims - 1](channels)
        self.fc, self.channel_dim = nn.Linear(channels, outputs), channel_dim

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc(F.relu(self.bn(x.movedim(self.channel_dim, 1))).flatten(2).mean(2))


class PixelHead(nn.Module):
    """BN – ReLU – 1×1 convolution – interpolation to the size of the model's output: logits for each pixel.

    Args:
        channels: of the features.
        outputs: of each pixel.
        size: of the output.
        channel_dim: the dimension of the features that holds the channels.
        image: size of the images of which the output has that size; the output follows it.
    """

    follows_image = True

    def __init__(
        self, channels: int, outputs: int, size: tuple[int, ...], channel_dim: int = 1, image: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self.bn = _NORMS[len(size) - 1](channels)
        self.conv = _CONVOLUTIONS[len(size) - 1](channels, outputs, 1)
        self.size, self.channel_dim, self.image = size, channel_dim, image

    def forward(self, x: Tensor, image: tuple[int, ...] = ()) -> Tensor:
        """Logits, for an image of this size."""
        logits = self.conv(F.relu(self.bn(x.movedim(self.channel_dim, 1))))
        return _resize(logits, _follow(self.size, self.image, image))


class GridHead(nn.Module):
    """Layer norm – linear for each token, laid out as an image – interpolation: logits for each pixel."""

    follows_image = True

    def __init__(
        self, features: int, outputs: int, grid: tuple[int, int], size: tuple[int, ...], image: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self.fc = VectorHead(features, outputs)
        self.grid, self.size, self.image = grid, size, image

    def forward(self, tokens: Tensor, image: tuple[int, ...] = ()) -> Tensor:
        """Logits, for an image of this size."""
        grid = _follow(self.grid, self.image, image)
        logits = self.fc(tokens[:, -prod(grid) :])
        return _resize(logits.movedim(2, 1).unflatten(2, grid), _follow(self.size, self.image, image))


def _follow(size: tuple[int, ...], image: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """What has this size for an image has it in proportion for another one; a part of a pixel is a pixel."""
    if other == image or len(other) != len(image) or len(image) != len(size):
        return size
    return tuple(-(-n * now // then) for n, then, now in zip(size, image, other, strict=True))


_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _resize(x: Tensor, size: tuple[int, ...]) -> Tensor:
    mode = ("linear", "bilinear", "trilinear")[len(size) - 1]
    return x if x.shape[2:] == size else F.interpolate(x, size, mode=mode, align_corners=False)
