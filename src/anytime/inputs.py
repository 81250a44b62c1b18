"""What networks take: tensors, arrays, or containers of them, in the precision of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from anytime.errors import AnytimeError
from anytime.network import Network, tensors_of
from anytime.walkable import walkable

COMPLAINTS = (RuntimeError, TypeError, AttributeError)
"""What networks raise about inputs of another type than they take."""


def as_input(net: Any, x: Any) -> Any:
    """An input with its arrays as tensors: on the network's device, floats of its precision.

    Examples:
        >>> import anytime
        >>> net = anytime.create_model("resann-1-8")
        >>> as_input(net, np.zeros((1, 3, 32, 32))).dtype
        torch.float32
    """
    walkable(net)
    if isinstance(x, Tensor):
        return x
    leaves = tree_leaves(x)
    if any(isinstance(leaf, np.ndarray) for leaf in leaves):
        weight = _weight(net)
        device = None if weight is None else weight.device
        return tree_map(lambda leaf: _like(weight, leaf).to(device) if isinstance(leaf, np.ndarray) else leaf, x)
    if isinstance(net, Network) and not any(isinstance(leaf, Tensor) for leaf in leaves):
        raise AnytimeError(
            f"the input is {_described(x)}; expected a tensor or an array, or a dict, tuple or list of them"
        )
    return x


def like_weights(net: Any, x: Any) -> Any:
    """Inputs of a batch with arrays as tensors and all floats of the network's precision; nothing is moved.

    Examples:
        >>> import anytime
        >>> net = anytime.create_model("resann-1-8").bfloat16()
        >>> like_weights(net, torch.zeros(1, 3, 32, 32)).dtype
        torch.bfloat16
    """
    weight = _weight(net)
    return tree_map(lambda leaf: _like(weight, leaf) if isinstance(leaf, np.ndarray | Tensor) else leaf, x)


def as_tensor(array: np.ndarray) -> Tensor:
    """An array as a tensor: a copy where torch cannot take it as it is, as in the byte order of another machine."""
    if array.dtype.kind not in "fiub":
        raise AnytimeError(f"got an array of {array.dtype}; expected an array of numbers")
    return torch.as_tensor(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")))


@contextmanager
def explained(net: Any, x: Any) -> Iterator[None]:
    """Explain what the network raises if the type of the input is the likely cause."""
    try:
        yield
    except COMPLAINTS as error:
        explain(error, net, x)
        raise


def explain(error: Exception, net: Any, x: Any) -> None:
    """Raise an explanation of what the network raised, if the type of the input is the likely cause."""
    if isinstance(x, dict | tuple | list) and type(x).__name__ in str(error):
        meant = f"x[{next(iter(x))!r}]" if isinstance(x, dict) else "x[0], without labels"
        raise AnytimeError(
            f"the input is {_described(x)}, which this network does not take ({error}): pass the tensor itself, {meant}"
        ) from error
    weight = _weight(net)
    for leaf in tensors_of(x):
        if weight is None or leaf.dtype == weight.dtype:
            continue
        given = f"the input is {_name(leaf)}, the network's weights are {_name(weight)}"
        if leaf.dtype == torch.uint8:
            raise AnytimeError(
                f"{given}: normalize pixels as in training first: net.preprocess(pixels), or data.normalize(pixels)"
            ) from error
        if leaf.is_complex():
            raise AnytimeError(f"{given}: give it real numbers, e.g. x.real or x.abs()") from error
        if leaf.is_floating_point() or _about_types(error):
            raise AnytimeError(f"{given}: convert it with x.to(torch.{_name(weight)})") from error


def check_outputs(net: Any, x: Any, outputs: Any, exit: int | None = None) -> None:
    """Refuse outputs that are NaN.

    Args:
        net: the network.
        x: its input.
        outputs: of one exit, or of the exits at which samples left; the samples are along the first dimension.
        exit: the exit, if it is one.
    """
    for tensor in tensors_of(outputs):
        # One operation for most outputs; infinite ones may have a sum that is NaN, too.
        if (total := tensor.sum().item()) != total and tensor.isnan().any():
            raise AnytimeError(
                f"the network's outputs{_at(net, exit)} are NaN for {nan_rows(tensor)}: {nan_cause(net, x)}"
            )


def nan_rows(tensor: Tensor) -> str:
    """The samples that are NaN, in words."""
    rows = tensor.isnan().reshape(len(tensor) if tensor.ndim else 1, -1).any(1).nonzero().squeeze(1).tolist()
    if len(rows) == 1:
        return f"sample {rows[0]} of {len(tensor) if tensor.ndim else 1}"
    first = ", ".join(map(str, rows[:5]))
    return f"{len(rows)} of {len(tensor)} samples ({first}{', …' if len(rows) > 5 else ''})"


def nan_cause(net: Any, x: Any = None) -> str:
    """Where outputs that are NaN come from: the weights, the input, or numbers that got too large on the way."""
    state = net.state_dict() if isinstance(net, nn.Module) else {}
    for name, tensor in state.items():
        if isinstance(tensor, Tensor) and tensor.isnan().any():
            return f"its weights {name} have NaN values"
    if not all(tensor.isfinite().all() for tensor in tensors_of(x)):
        return "the input has infinite or NaN values"
    return "are values of the input infinite, NaN, or too large for the precision of the network?"


def _at(net: Any, exit: int | None) -> str:
    return "" if exit is None else f" at exit {exit + 1} of {walkable(net).exits or '?'} (index {exit})"


def _about_types(error: Exception) -> bool:
    """Whether an operation complained about the type of a tensor: an index may be an integer for good reason."""
    return any(words in str(error) for words in ("scalar type", "not implemented for", "bool tensor", "dtype"))


def device_of(x: Any) -> torch.device:
    """The device of an input."""
    tensors = tensors_of(x)
    return tensors[0].device if tensors else torch.device("cpu")


def _weight(net: Any) -> Tensor | None:
    """A parameter whose type and device stand for the network's."""
    parameters = net.parameters() if isinstance(net, nn.Module) else ()
    return next((parameter for parameter in parameters if parameter.is_floating_point()), None)


def _like(weight: Tensor | None, leaf: np.ndarray | Tensor) -> Tensor:
    tensor = leaf if isinstance(leaf, Tensor) else as_tensor(leaf)
    return tensor if weight is None or not tensor.is_floating_point() else tensor.to(weight.dtype)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _described(x: Any) -> str:
    return "None" if x is None else f"a {type(x).__name__}"
