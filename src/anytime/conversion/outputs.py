"""What models return, and where the logits are in it."""

from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from anytime.errors import AnytimeError

LOGITS = ("logits", "out")
"""What transformers and torchvision call them."""


def find_logits(output: Any) -> Tensor:
    """The logits in a model's output."""
    if isinstance(output, Tensor):
        return output
    for name in LOGITS:
        named = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
        if isinstance(named, Tensor):
            return named
    if isinstance(output, tuple | list) and not isinstance(output, PackedSequence):
        first = next((part for part in output if part is not None), None)
        if isinstance(first, Tensor) and first.ndim == 2:
            return first
    raise AnytimeError(
        f"the model returns {describe(output)}, with no logits in it; say where they are: "
        "convert(…, logits=lambda output: …), or convert a model with a classifier"
    )


def first_tensor(output: Any) -> Tensor | None:
    """The first tensor in a module's output; None for packed sequences, which have no row for each sample."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict):
        output = tuple(output.values())
    if not isinstance(output, tuple | list) or isinstance(output, PackedSequence):
        return None
    return next((tensor for part in output if (tensor := first_tensor(part)) is not None), None)


def is_packed(output: Any) -> bool:
    """Whether a module returns a packed sequence, alone or, as an LSTM does, with its last state."""
    return isinstance(output, PackedSequence) or (
        isinstance(output, tuple) and len(output) > 0 and is_packed(output[0])
    )


def describe(output: Any) -> str:
    """An output in words, for messages."""
    if output is None:
        return "None"
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    if isinstance(output, PackedSequence):
        return "a packed sequence"
    if isinstance(output, tuple | list) and not hasattr(output, "_fields"):
        return f"a {type(output).__name__} ({', '.join(map(describe, output))})"
    names = list(output) if isinstance(output, dict) else list(getattr(output, "__dict__", {}))
    return f"{type(output).__name__}({', '.join(map(str, names))})" if names else type(output).__name__
