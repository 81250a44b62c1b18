"""Outputs of models, and the logits in them."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from anytime.errors import AnytimeError

LOGITS = ("logits", "out")
"""Names of the logits in transformers and torchvision."""


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


@dataclass(frozen=True)
class OwnForm:
    """The form of a model's output, without the tensors: makes another one of it for the logits of an exit."""

    kind: type
    name: str | None
    """The name of the logits."""

    @classmethod
    def of(cls, output: Any) -> "OwnForm":
        """The form of an output in which ``find_logits`` finds the logits."""
        named = output.get if isinstance(output, dict) else lambda name: getattr(output, name, None)
        return cls(type(output), next((name for name in LOGITS if isinstance(named(name), Tensor)), None))

    def __call__(self, logits: Tensor, loss: Tensor | None) -> Any:
        """An output of this form: a ``ModelOutput`` of transformers, a dict, a tuple; or the logits themselves."""
        if self.name is None:
            extra = () if loss is None else (loss,)
            return self.kind((*extra, logits)) if self.kind in (tuple, list) else logits
        found = {self.name: logits} if loss is None else {"loss": loss, self.name: logits}
        if hasattr(self.kind, "_fields"):
            return self.kind(**{**dict.fromkeys(self.kind._fields), **found})  # type: ignore[attr-defined]
        return self.kind(**found)


OWN_LOSSES = (*(f"For{what}Classification" for what in ("Sequence", "Image", "Video", "Audio", "Token")),
              "ForCausalLM", "ForMaskedLM")  # fmt: skip
"""The losses of transformers that are functions of logits and labels alone."""


def own_loss(model: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss that a model of transformers computes from these logits."""
    kind = getattr(model, "loss_type", None)
    if kind not in OWN_LOSSES and not (kind is None and type(model).__name__.endswith("LMHeadModel")):
        raise AnytimeError(
            f"{type(model).__name__} has no loss that is known here; leave the labels out and compute one from the "
            "logits, e.g. anytime.losses.cross_entropy(output.logits, labels).mean()"
        )
    config: Any = model.config
    words = {"config": config, "vocab_size": getattr(config, "vocab_size", None)}
    return model.loss_function(logits=logits, pooled_logits=logits, labels=labels, **words)  # type: ignore[operator]


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
    """Describe an output, for error messages."""
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
