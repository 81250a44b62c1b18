"""Sentence Transformers with exits: embeddings and scores after any of the model's blocks, and a loss for all exits."""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anytime.conversion.convert import convert
from anytime.conversion.converted import ConvertedNetwork
from anytime.errors import AnytimeError, check_integer, require
from anytime.inference.prediction import predict
from anytime.weights import WeightScheme, create_scheme
from anytime.weights.first_order import watching
from anytime.weights.trained import trained_exits

require("sentence_transformers", "sentence-transformers")

TENSORS = ("input_ids", "attention_mask", "token_type_ids")
"""What the network takes of what the model's tokenizer returns."""
SENTENCES = ("A short sentence.", "Another sentence, which has a few words more than the first one.")


class _Exits:
    """What encoders and cross-encoders have in common.

    Args:
        model: it is shared, not copied.
        exits: see ``anytime.convert``; named modules are those of ``model.named_modules()``.
        example: inputs of the model, to capture its graph with.
    """

    output: str
    """The name of the model's output among its features."""

    def __init__(self, model: Any, exits: int | float | Sequence[str], example: Sequence[Any]) -> None:
        self.model, self._after = model, 0.0
        names = [f"model.{name}" for name in exits] if isinstance(exits, list | tuple) else exits
        tensors = self.inputs(model.preprocess(list(example)))
        self.net: ConvertedNetwork = convert(
            _OfTensors(model, self.output), tensors, names, head="own", logits=_unchanged
        )
        """The anytime network, from a dict of the tokenizer's tensors to the model's output at each exit."""

    @property
    def exits(self) -> int:
        """The number of exits; the last one is the whole model."""
        return self.net.exits

    def inputs(self, features: Mapping[str, Any]) -> dict[str, Tensor]:
        """The network's input, of what the model's ``preprocess`` returns."""
        if "input_ids" not in features or "cu_seq_lens_q" in features:
            packed = "cu_seq_lens_q" in features
            raise AnytimeError(
                "the model packs its sentences for Flash Attention; load it with another attn_implementation"
                if packed
                else f"the model takes {', '.join(map(str, features))}; expected one that takes tokens of text"
            )
        left_out = any(not getattr(module, "include_prompt", True) for module in self.model.modules())
        if left_out and "prompt_length" in features:
            raise AnytimeError("the model's pooling leaves out the prompt, which exits cannot: use no prompt")
        return {name: features[name] for name in TENSORS if name in features}

    def at(self, exits: int) -> Any:
        """The model up to an exit: a model of the same class with the same parameters, for all that is not training.

        Args:
            exits: the number of exits to go through.
        """
        check_integer("exits", exits)
        if exits > self.exits:
            raise AnytimeError(f"exits={exits}: there are {self.exits}")
        return self._answering(lambda x: predict(self.net, x, exits=exits).logits)

    def _answering(self, answer: Callable[[Any], Tensor]) -> Any:
        """A copy of the model without its tensors, which asks this function instead of its modules."""

        def forward(features: dict[str, Any], **_: Any) -> dict[str, Any]:
            if self.net.training:
                self.net.eval()
            return {**features, self.output: answer(self.inputs(features))}

        model = copy.copy(self.model)
        vars(model)["forward"] = forward
        return model

    def _answer(
        self, method: str, inputs: Any, count: int, exits: int | None, deadline: float | None, options: dict[str, Any]
    ) -> Any:
        """What a method of the model returns, within these limits."""
        if deadline is None:
            model = self.model if exits is None else self.at(exits)
            return getattr(model, method)(*inputs, **options)
        start, answered = time.perf_counter(), 0.0

        def answer(x: Any) -> Tensor:
            nonlocal answered
            left = deadline - self._after - (time.perf_counter() - start)
            logits = predict(self.net, x, exits=exits, deadline=left).logits
            answered = time.perf_counter()
            return logits

        found = getattr(self._answering(answer), method)(*inputs, **{**options, "batch_size": max(count, 1)})
        self._after = max(time.perf_counter() - answered, 0.9 * self._after) if answered else self._after
        return found


class AnytimeEncoder(_Exits):
    """A ``SentenceTransformer`` with an embedding at every exit, by the model's own pooling and normalization.

    The embedding of an exit is exactly that of the model with the blocks after the exit removed. Nothing is added to
    the model: it is saved as ever, and gets its exits again once it is loaded. Before a training with
    :class:`AnytimeLoss` the embeddings of early exits are of little use.

    Args:
        model: a ``SentenceTransformer`` that takes text. It is shared, not copied.
        exits: their number, spread evenly over the cost, the whole model included; or as in ``anytime.convert``.

    Examples:
        >>> from sentence_transformers import SentenceTransformer                  # doctest: +SKIP
        >>> encoder = AnytimeEncoder(SentenceTransformer("all-MiniLM-L6-v2"), 3)   # doctest: +SKIP
        >>> encoder.encode(["A sentence."], deadline=0.01).shape                   # doctest: +SKIP
        (1, 384)
    """

    output = "sentence_embedding"

    def __init__(self, model: Any, exits: int | float | Sequence[str] = 4) -> None:
        super().__init__(model, exits, SENTENCES)

    def encode(
        self, sentences: str | Sequence[str], *, exits: int | None = None, deadline: float | None = None, **options: Any
    ) -> Any:
        """Embeddings, as ``SentenceTransformer.encode`` returns them.

        Embeddings of different exits are not meant to be compared with each other.

        Args:
            sentences: one or several.
            exits: the number of exits to go through.
            deadline: seconds from the call, tokenizing included; the deepest exit in time embeds all sentences, which
                are one batch.
            options: of ``SentenceTransformer.encode``.

        Raises:
            UnfinishedError: if not even the first exit could be reached in time.
        """
        if limited := {"output_value", "device", "pool"} & options.keys():
            raise AnytimeError(f"encode({min(limited)}=…) is not for exits; use encoder.model.encode, or leave it out")
        count = 1 if isinstance(sentences, str) else len(sentences)
        return self._answer("encode", [sentences], count, exits, deadline, options)


class AnytimeCrossEncoder(_Exits):
    """A ``CrossEncoder`` (reranker) with scores at every exit, by the model's own classifier.

    The scores of an exit are exactly those of the model with the blocks after the exit removed.

    Args:
        model: a ``CrossEncoder`` that takes text. It is shared, not copied.
        exits: as for :class:`AnytimeEncoder`.
    """

    output = "scores"

    def __init__(self, model: Any, exits: int | float | Sequence[str] = 4) -> None:
        super().__init__(model, exits, [SENTENCES, SENTENCES[::-1]])

    def predict(
        self, pairs: Sequence[Any], *, exits: int | None = None, deadline: float | None = None, **options: Any
    ) -> Any:
        """Scores, as ``CrossEncoder.predict`` returns them; the limits are those of :meth:`AnytimeEncoder.encode`."""
        return self._answer("predict", [pairs], len(pairs), exits, deadline, options)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        exits: int | None = None,
        deadline: float | None = None,
        **options: Any,
    ) -> Any:
        """The documents, best first, as ``CrossEncoder.rank`` returns them, within the same limits."""
        return self._answer("rank", [query, documents], len(documents), exits, deadline, options)


class AnytimeLoss(nn.Module):
    """One objective of all exits: a loss of Sentence Transformers at each exit, weighed by a scheme.

    The model runs once per step, whatever the number of exits. The trainer does not save the scheme: a resumed run
    begins its averages anew.

    Args:
        encoder: an :class:`AnytimeEncoder` or :class:`AnytimeCrossEncoder`, whose model the trainer trains.
        loss: made with that model, e.g. ``MultipleNegativesRankingLoss(encoder.model)``; not one of those that embed
            again in the backward pass (``Cached…``).
        scheme: A weight scheme's name (see ``create_scheme``) or a :class:`WeightScheme`.

    Attributes:
        losses: that of each exit at the last step, without a graph.
    """

    def __init__(self, encoder: _Exits, loss: nn.Module, scheme: str | WeightScheme = "adaloss") -> None:
        super().__init__()
        if getattr(loss, "uses_gradient_cache", False):
            raise AnytimeError(
                f"{type(loss).__name__} runs the model again in its backward pass, which exits cannot follow; use the "
                "loss of the same name without Cached"
            )
        self.model, self.loss = encoder.model, loss
        self.scheme = create_scheme(scheme, encoder.exits) if isinstance(scheme, str) else scheme
        self._encoder = (encoder,)  # in a tuple, as its parameters are the model's
        self.losses = torch.zeros(encoder.exits)

    def forward(self, features: Any, labels: Tensor, **options: Any) -> Tensor:
        """The objective.

        Args:
            features: one for each column of the data, as the loss takes them.
            labels: as the loss takes them.
            options: likewise.
        """
        (encoder,) = self._encoder
        net, training = encoder.net, encoder.model.training
        net.training = training  # the model's modules have their own modes
        if training and self.scheme.exits == net.exits:
            self.scheme.restrict(trained_exits(net))
        wanted = sorted(net.exit_indices(getattr(self.scheme, "only", None) if training else None))
        computed: list[dict[int, Tensor]] = []
        with watching(self.scheme, net):
            ask = partial(self.loss, features, labels, **options)
            losses = torch.stack([self._loss(encoder, ask, exit, wanted, computed) for exit in wanted])
            if len(wanted) < net.exits:  # schemes take one loss per exit
                where = torch.tensor(wanted, device=losses.device)
                losses = losses.new_zeros(net.exits).index_copy(0, where, losses)
            self.losses = losses.detach()
            return self.scheme(losses)

    @staticmethod
    def _loss(
        encoder: _Exits, ask: Callable[[], Tensor], exit: int, wanted: list[int], computed: list[dict[int, Tensor]]
    ) -> Tensor:
        """The loss of one exit. The first exit's calls of the model compute all exits, which the others' calls get."""
        calls = 0

        def forward(inputs: dict[str, Any], **_: Any) -> dict[str, Any]:
            nonlocal calls
            if exit == wanted[0]:
                with _forward_of(encoder.model, before):
                    answers = encoder.net(encoder.inputs(inputs), wanted)
                computed.append(dict(zip(wanted, answers, strict=True)))
            calls += 1
            return {**inputs, encoder.output: computed[calls - 1][exit]}

        before = vars(encoder.model).get("forward")
        with _forward_of(encoder.model, forward):
            return ask()


@contextmanager
def _forward_of(model: nn.Module, forward: Any) -> Iterator[None]:
    """A context in which a model has this ``forward``; None is that of its class."""
    before = vars(model).pop("forward", None)
    try:
        if forward is not None:
            vars(model)["forward"] = forward
        yield
    finally:
        vars(model).pop("forward", None)
        if before is not None:
            vars(model)["forward"] = before


class _OfTensors(nn.Module):
    """A model of Sentence Transformers, from tensors to a tensor."""

    def __init__(self, model: nn.Module, output: str) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, **tensors: Tensor) -> Tensor:
        return self.model(tensors)[self.output]


def _unchanged(output: Tensor) -> Tensor:
    return output
