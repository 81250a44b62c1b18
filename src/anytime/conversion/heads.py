"""Heads for the exits of converted models: from the features at an exit to an output shaped as the model's own."""

from collections.abc import Callable
from functools import partial
from math import isqrt

from torch import Tensor, nn

from anytime.conversion.graph import CLASS_TOKENS
from anytime.conversion.head_layers import GridHead, MapHead, MomentsHead, PixelHead, TokenHead, VectorHead
from anytime.errors import AnytimeError
from anytime.models.layers import LinearHead

HeadMaker = Callable[[tuple[int, ...], int], nn.Module]
"""``head(shape, outputs)``: a head for features of this shape, with this number of outputs (classes)."""

KINDS = ("auto", "linear", "mlp", "own")
"""Heads by name: with one linear layer, with a hidden layer, what was measured to be better for the features (auto), or
the model's own tail (own)."""

HIDDEN = 256


class HeadFactory:
    """Factory of the heads of one model: the default ones, or the user's.

    Args:
        model: the model that gets exits.
        output: its output for the example.
        image: height and width of the example's image.
        head: the kind of head by name, or the user's function that makes one.
    """

    def __init__(
        self, model: nn.Module, output: Tensor, image: tuple[int, ...] = (), head: str | HeadMaker = "auto"
    ) -> None:
        if head not in KINDS and (isinstance(head, str) or not callable(head)):
            raise AnytimeError(
                f"head={head!r} must be {', '.join(map(repr, KINDS))}, or a function of the features' shape and the "
                "number of outputs: head=lambda shape, outputs: nn.Module"
            )
        self.model, self.output, self.image = model, output, image
        self.head = None if isinstance(head, str) else head
        # Feature maps have a hidden layer by default: docs/convert.md has the measurements.
        self.linear_maps, self.hidden = head == "linear", HIDDEN if head == "mlp" else 0
        self.own = head == "own"
        shape = tuple(output.shape)
        self.channel_dim = _channel_dim(shape, model, default=2 if len(shape) == 3 else 1)
        self.outputs = shape[self.channel_dim]
        names = {name.rpartition(".")[2] for name, _ in model.named_parameters()}
        self.class_token = bool(names & CLASS_TOKENS)

    def fits(self, shape: tuple[int, ...], name: str) -> bool:
        """Whether a head can be made for features of this shape after this module."""
        return self.own or self.head is not None or self._default(shape, name, False) is not None

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
                return partial(VectorHead, width, outputs, self.hidden)
            if tokens:
                return partial(TokenHead, width, outputs, class_token, self.hidden)
            if not self.linear_maps:
                return partial(MomentsHead, width, outputs, len(shape) - 2, channels, HIDDEN)
            if len(shape) == 4 and channels == 1:
                return partial(LinearHead, width, outputs)
            return partial(MapHead, width, outputs, len(shape) - 2, channels)
        if self.channel_dim == len(output) - 1:
            same = channels == last and shape[:-1] == output[:-1]
            return partial(VectorHead, width, outputs, self.hidden) if same else None
        if len(shape) == len(output):
            return partial(PixelHead, width, outputs, output[2:], channels, self.image)
        grid = _grid(tokens, output[2:], self.class_token) if tokens and len(output) == 4 else None
        return partial(GridHead, width, outputs, grid, output[2:], self.image) if grid else None


def _channel_dim(shape: tuple[int, ...], module: nn.Module, default: int) -> int:
    """The channel dimension, inferred from the module's last layers."""
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
