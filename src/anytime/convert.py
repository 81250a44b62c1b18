"""Any PyTorch model to an anytime network: cut where the cost is even, with heads made to fit."""

import difflib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from anytime.capture import CLASS_TOKENS, Captured, NotCaptured, Trunk
from anytime.cost import counting, on_meta, shapes
from anytime.errors import AnytimeError
from anytime.models.layers import LinearHead
from anytime.network import AnytimeNetwork, Step
from anytime.suspend import Pause, Place, Watch, first_tensor

NEGLIGIBLE = 0.05
"""What is left after the last named exit may cost this share of the whole for the model's own classifier to be it."""


def convert(
    model: nn.Module,
    example: Any,
    exits: int | float | Sequence[str] = 4,
    *,
    head: Callable[[tuple[int, ...], int], nn.Module] | None = None,
    logits: Callable[[Any], Tensor] | None = None,
) -> "ConvertedNetwork":
    """Make a model anytime. Its parameters are shared, not copied: training the one trains the other.

    The model's graph is captured in eval mode and cut into stages; in training mode the model's own code runs, with
    its drop-out, batch norm and gradient checkpointing. The model's own classifier is the last exit. A model whose
    graph cannot be captured is paused inside its own code instead, with a warning that says why and what it then lacks.

    Args:
        model: takes the example and returns logits: a tensor, or an object, dict or tuple with them.
        example: an input: a tensor, a dict of keyword arguments, or a tuple of arguments; samples along the first
            dimension. One sample is enough. The network takes any number of samples, and of tokens where the model
            does; images are as large as the example's.
        exits: how many, spread evenly over the cost, the model's own included; or the share of the cost between one
            and the next (0.25: four); or the names of the modules after which to exit, in order, to which the model's
            own is added unless the last of them is its end.
        head: makes an exit: ``head(shape, num_classes)`` with the shape of the features in the example. Default: BN –
            ReLU – pool – linear for feature maps, as in the paper; layer norm – class token or mean – linear for
            tokens, with the padding mask if there is one; layer norm – linear for vectors.
        logits: takes the logits out of what the model returns, where that is not plain.

    Example:
        >>> model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(6)), nn.Linear(16, 3))
        >>> net = convert(model, torch.zeros(1, 16), exits=3)
        >>> net.exits, net.places
        (3, ['1', '3', "the model's own"])
        >>> x = torch.randn(5, 16)
        >>> torch.equal(net.eval()(x)[-1], model(x))
        True
    """
    example = dict(example) if isinstance(example, Mapping) else example
    tensors = [leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor)]
    if not tensors or not all(leaf.ndim and len(leaf) for leaf in tensors):
        raise AnytimeError("the example is an input of the model: tensors with samples along their first dimension")
    was_training = model.training
    trunk = Trunk(model, logits or _find_logits).eval()
    try:
        with torch.no_grad():
            example = _two_samples(example)
            survey = _Survey(trunk, example)
            try:
                net = _by_graph(trunk, example, survey, exits, head)
            except NotCaptured as reason:
                net = _by_pausing(trunk, example, survey, exits, head, str(reason))
                warnings.warn(
                    f"{type(model).__name__} is paused inside its own code at the exits, since {reason}; so samples "
                    "cannot leave a batch one by one (policy.predict), and its stages cannot be exported",
                    stacklevel=2,
                )
    finally:
        model.train(was_training)
    return net.train(was_training)


class ConvertedNetwork(AnytimeNetwork):
    """A user's model with exits; ``convert`` makes it.

    Attributes:
        model: the user's, with its own parameters.
        places: the modules after which the exits are; with the number of the call where one is called several times.
        paused_because: why the model's graph could not be captured; None where it could.
    """

    def __init__(
        self,
        trunk: Trunk,
        stages: Sequence[nn.Module],
        heads: Sequence["Exit"],
        places: Sequence[Place],
        survey: "_Survey",
        paused_because: str | None,
    ) -> None:
        super().__init__(stages, heads)
        self.trunk, self._places, self.paused_because = trunk, list(places), paused_because
        once = [survey.times_called(name) == 1 for name, _ in places]
        named = [n if one else f"{n}, call {call + 1}" for (n, call), one in zip(places, once, strict=True)]
        self.places = [*named, "the model's own"]

    @property
    def model(self) -> nn.Module:
        """The model that was converted."""
        return self.trunk.model

    def freeze(self) -> "ConvertedNetwork":
        """Train the new heads alone: the model's parameters get no gradients and its batch norm stays as it is."""
        self.trunk.requires_grad_(False)
        self.trunk.frozen = True
        self.trunk.eval()
        return self

    def take(self, state: Any, rows: Tensor) -> Any:
        """The state of some samples of the batch."""
        return state.take(rows)

    def _steps(self, x: Any, wanted: frozenset[int]) -> Iterator[Any]:
        if not self.training:
            yield from super()._steps(x, wanted)
            return
        # In training the model's own code runs, once. Heads come after it: a module may be called inside a region that
        # is computed again for the gradients, and heads must not be.
        features: dict[int, Tensor] = {}

        def reached(place: Place, output: Any) -> None:
            exit = self._places.index(place)
            tensor = first_tensor(output)
            assert tensor is not None
            if learns and not tensor.requires_grad:
                raise AnytimeError(
                    f"no gradients reach {place[0]}: with gradient checkpointing, use it with use_reentrant=False"
                )
            features[exit] = tensor.clone() if self.heads[exit].changed_later else tensor
            if exit >= max(wanted):
                raise _Enough

        grad = torch.is_grad_enabled() and not self.trunk.frozen
        learns = grad and any(p.requires_grad for p in self.trunk.parameters())
        try:
            with Watch(self.model, self._places, reached), torch.set_grad_enabled(grad):
                features[self.exits - 1] = self.trunk(x)
        except _Enough:
            pass
        for exit in sorted(wanted):
            yield Step(exit, self.heads[exit].evaluate(features[exit], x))  # type: ignore[operator]


class _Enough(BaseException):
    """No deeper exit is wanted."""


class Exit(nn.Module):
    """An exit of a converted network: finds its features in the state.

    Args:
        head: from features, and the padding mask where it takes one, to logits.
        index: where the features are in the state that a stage gives.
        mask: the name of the padding mask in the input, and where it is in the state.

    ``changed_later`` says that the model changes the features in place after the exit.
    """

    def __init__(self, head: nn.Module, index: int, mask: tuple[str, int] | None = None) -> None:
        super().__init__()
        self.head, self.index, self.mask = head, index, mask
        self.changed_later = False

    def forward(self, state: Any) -> Tensor:
        """Logits."""
        if hasattr(state, "values"):
            features = state.values[self.index]
            return self.head(features, state.values[self.mask[1]]) if self.mask else self.head(features)
        features = first_tensor(state.value)
        assert features is not None
        return self.evaluate(features, state.going.x)

    def evaluate(self, features: Tensor, x: Any) -> Tensor:
        """Logits, with the mask from the network's input."""
        return self.head(features, x[self.mask[0]]) if self.mask else self.head(features)


@dataclass(frozen=True)
class _Found:
    """A module call in the model's forward pass."""

    place: Place
    fraction: float
    """Of the model's MACs, spent when it ended."""
    shape: tuple[int, ...] | None
    """Of its output, where that is or begins with a floating-point tensor."""
    order: int
    live: int = 0
    """How many tensors would cross a cut here; fewer is better."""
    node: Any = None


class _Survey:
    """One run of the model: which modules are called, in which order, what they give and cost."""

    def __init__(self, trunk: Trunk, example: Any) -> None:
        calls: list[tuple[Place, int, tuple[int, ...] | None]] = []
        self.batch = next(len(leaf) for leaf in tree_leaves(example) if isinstance(leaf, Tensor))

        def note(place: Place, output: Any) -> None:
            features = first_tensor(output)
            usable = features is not None and features.is_floating_point() and features.ndim > 1
            calls.append((place, counter.get_total_flops(), tuple(features.shape) if usable else None))  # type: ignore[union-attr]

        self.logits = trunk(example)
        try:  # shapes alone: torch counts more there than of the fused kernels of a processor
            twin, shaped = on_meta(trunk), shapes(example)
            with counting() as counter, Watch(twin.model, None, note):
                twin(shaped)
        except Exception:
            calls.clear()
            with counting() as counter, Watch(trunk.model, None, note):
                trunk(example)
        if not isinstance(self.logits, Tensor) or self.logits.ndim < 2 or len(self.logits) != self.batch:
            raise AnytimeError(f"the model's logits are {_what(self.logits)}; expected a tensor of samples × classes")
        total = max(counter.get_total_flops(), 1)
        self.found = [_Found(place, macs / total, shape, i) for i, (place, macs, shape) in enumerate(calls)]

    def times_called(self, name: str) -> int:
        return sum(found.place[0] == name for found in self.found)

    def called(self, after: int, until: int) -> list[str]:
        """The modules that ended between two calls."""
        return list(dict.fromkeys(found.place[0] for found in self.found if after < found.order <= until))


def _by_graph(trunk: Trunk, example: Any, survey: _Survey, exits: Any, head: Any) -> ConvertedNetwork:
    captured = Captured(trunk, example)
    usable = []
    for found in survey.found:
        node = captured.result(*found.place) if found.shape else None
        rows = captured.rows(node) if node is not None else None
        if node is not None and rows is not None and rows.one_each and node is not captured.output:
            position = captured.position[node]
            usable.append(replace(found, order=position, live=captured.live(position), node=node))
    chosen = _choose(trunk.model, survey, usable, exits)
    mask = _mask(example)
    names = [key for key, leaf in example.items() if isinstance(leaf, Tensor)] if isinstance(example, dict) else []
    extra = [names.index(mask)] if mask else []
    cut = captured.cut([*(found.node for found in chosen), captured.output], extra)
    heads = []
    for found, (_, index, masks) in zip(chosen, cut, strict=False):
        rows = captured.rows(found.node)
        assert rows is not None
        token = captured.has_class_token(found.node)
        made, masked = _make_head(head, trunk.model, survey.logits, found, rows.dim, token, mask, example)
        heads.append(Exit(made, index, (mask, masks[0]) if mask and masked else None))
    stages = [stage for stage, _, _ in cut]
    net = ConvertedNetwork(
        trunk, stages, [*heads, Exit(nn.Identity(), cut[-1][1])], [f.place for f in chosen], survey, None
    )
    _verify(net, example, survey)
    return net


def _verify(net: ConvertedNetwork, example: Any, survey: _Survey) -> None:
    """The stages do what the model does: at each exit, at the end, and for another number of samples."""
    own_features: dict[Place, tuple[Tensor, Tensor, int]] = {}

    def note(place: Place, output: Any) -> None:
        tensor = first_tensor(output)
        assert tensor is not None
        own_features[place] = tensor, tensor.clone(), tensor._version

    with Watch(net.model, net._places, note):
        net.trunk(example)
    for place, exit in zip(net._places, net.heads, strict=False):
        tensor, _, version = own_features[place]
        exit.changed_later = tensor._version != version  # type: ignore[assignment]
    features = {place: clone for place, (_, clone, _) in own_features.items()}
    try:
        state = example
        for i, stage in enumerate(net.stages):
            state = stage(state)
            value = state.values[net.heads[i].index]  # type: ignore[union-attr]
            own = features[net._places[i]] if i < len(net._places) else survey.logits
            if not torch.equal(value, own):
                where = net.places[i]
                raise NotCaptured(f"its captured graph gives other numbers than itself (at {where})")
        more = tree_map(lambda leaf: torch.cat([leaf, leaf[:1]]) if _is_batch(leaf, survey.batch) else leaf, example)
        if not torch.allclose(net(more, [-1])[0], net.trunk(more), rtol=1e-3, atol=1e-4):
            raise NotCaptured("its captured graph gives other numbers than itself for other batch sizes")
        _verify_rows(net, more)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise NotCaptured(f"its captured graph does not run ({str(error).splitlines()[0]})") from error


def _verify_rows(net: ConvertedNetwork, x: Any) -> None:
    """Samples that are taken out at any cut leave the others' answers as they were."""
    whole = net(x)
    rows = torch.arange(len(whole[-1]), device=whole[-1].device)
    rows = torch.cat([rows[:1], rows[2:]])
    for cut in range(net.exits - 1):
        state = x
        for i, stage in enumerate(net.stages):
            state = stage(state)
            state = net.take(state, rows) if i == cut else state
        if not torch.allclose(net.heads[-1](state), whole[-1][rows], rtol=1e-3, atol=1e-4):
            raise NotCaptured("what crosses a cut mixes the samples of a batch")


def _by_pausing(
    trunk: Trunk, example: Any, survey: _Survey, exits: Any, head: Any, reason: str
) -> ConvertedNetwork:  # fmt: skip
    usable = [
        replace(found, live=0 if found.place[0][-1].isdigit() else 1)  # blocks, by their names, rather than their parts
        for found in survey.found
        if found.shape and found.shape[0] == survey.batch
    ]
    chosen = _choose(trunk.model, survey, usable, exits)
    mask, heads = _mask(example), []
    for found in chosen:
        made, masked = _make_head(head, trunk.model, survey.logits, found, 0, True, mask, example)
        heads.append(Exit(made, 0, (mask, 0) if mask and masked else None))
    places = [found.place for found in chosen]
    orders = [-1, *(found.order for found in chosen), len(survey.found)]
    modules = dict(trunk.model.named_modules())
    stages, seen = [], set[str]()
    for i, (after, until) in enumerate(pairwise(orders)):
        names = [
            f"model.{module}.{name}" for module in survey.called(after, until)
            for name, _ in modules[module].named_parameters(recurse=False)
        ]  # fmt: skip
        if until == len(survey.found):  # and those that no module's call uses
            names = [name for name, _ in trunk.named_parameters()]
        stages.append(Pause(trunk, places, [name for name in names if name not in seen], first=i == 0))
        seen |= set(names)
    return ConvertedNetwork(trunk, stages, [*heads, Exit(nn.Identity(), 0)], places, survey, reason)


def _choose(model: nn.Module, survey: _Survey, usable: list[_Found], exits: Any) -> list[_Found]:
    """The module calls after which to exit, without the model's own end."""
    if isinstance(exits, str | list | tuple):
        return _named(model, survey, usable, [exits] if isinstance(exits, str) else list(exits))
    if isinstance(exits, int) and not isinstance(exits, bool) and exits >= 1:
        targets = [i / exits for i in range(1, exits)]
        width = 0.5 / exits
    elif isinstance(exits, float) and 0 < exits <= 1:
        targets = [exits * i for i in range(1, ceil(1 / exits - 1e-9))]
        width = exits / 2
    else:
        raise AnytimeError(
            f"exits={exits!r}: it is a whole number from 1, a share of the cost up to 1, or modules' names"
        )
    chosen: list[_Found] = []
    for target in targets:
        after = chosen[-1] if chosen else None
        left = [f for f in usable if after is None or (f.order > after.order and f.fraction > after.fraction)]
        left = [f for f in left if 0 < f.fraction < 1 - min(NEGLIGIBLE, width / 2)]
        if not left:
            raise AnytimeError(
                f"exits={exits!r}: this model has places for {len(chosen) + 1} only; ask for fewer, or name the modules"
            )
        near = [f for f in left if abs(f.fraction - target) <= width] or left
        least = min(f.live for f in near)
        # Between places as good, the block rather than a part of it.
        depth = {f: _depth(f.place[0]) for f in near}
        best = min(
            (f for f in near if f.live == least), key=lambda f: abs(f.fraction - target) + 0.2 * width * depth[f]
        )
        chosen.append(best)
    return chosen


def _depth(name: str) -> float:
    """How deep inside the model a module is; numbers in lists of blocks hardly count."""
    return sum(not part.isdigit() for part in name.split(".")) + 0.05 * name.count(".")


def _named(model: nn.Module, survey: _Survey, usable: list[_Found], names: list[str]) -> list[_Found]:
    modules = dict(model.named_modules())
    chosen: list[_Found] = []
    for name in names:
        if name not in modules or not name:
            near = (
                difflib.get_close_matches(str(name), modules, n=3, cutoff=0.5) or list(dict(model.named_children()))[:5]
            )
            raise AnytimeError(f"the model has no module {name!r}; the nearest are: {', '.join(near)}")
        times = survey.times_called(name)
        if times != 1:
            called = "is not called in the forward pass" if not times else f"is called {times} times"
            raise AnytimeError(
                f"{name} {called}, so `after {name}` is no place for an exit; give exits as a number, or name another"
            )
        found = next((f for f in usable if f.place[0] == name), None)
        ends = next(f.fraction for f in survey.found if f.place[0] == name) >= 1 - NEGLIGIBLE
        if found is None and ends and chosen and name == names[-1]:
            return chosen  # the model's own end
        if found is None:
            raise AnytimeError(
                f"{name} gives no tensor with a row for each sample that the model goes on with: name another"
            )
        if chosen and found.order <= chosen[-1].order:
            raise AnytimeError(f"exits out of order: {name} ends before {chosen[-1].place[0]} does, or with it")
        chosen.append(found)
    if not chosen:
        raise AnytimeError("exits=[]: name at least one module")
    own = chosen[-1].fraction >= 1 - NEGLIGIBLE
    return chosen[:-1] if own else chosen


def _find_logits(output: Any) -> Tensor:
    """The logits in what a model returns, as public libraries name them."""
    if isinstance(output, Tensor):
        return output
    named = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor) and output[0].ndim == 2:
        return output[0]
    raise AnytimeError(
        f"the model returns {_what(output)}, with no logits in it; say where they are: "
        "convert(…, logits=lambda output: …), or convert a model with a classifier"
    )


def _what(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    names = list(output) if isinstance(output, dict) else list(getattr(output, "__dict__", {}))
    return f"{type(output).__name__}({', '.join(map(str, names))})"


def _two_samples(example: Any) -> Any:
    """With one sample alone torch.export would take its number for fixed."""
    batch = next(len(leaf) for leaf in tree_leaves(example) if isinstance(leaf, Tensor))
    if batch > 1:
        return example
    return tree_map(lambda leaf: torch.cat([leaf, leaf]) if _is_batch(leaf, 1) else leaf, example)


def _is_batch(leaf: Any, batch: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == batch


def _mask(example: Any) -> str | None:
    """The name of the padding mask among the inputs."""
    mask = example.get("attention_mask") if isinstance(example, dict) else None
    return "attention_mask" if isinstance(mask, Tensor) and mask.ndim == 2 else None


def _make_head(
    head: Callable[[tuple[int, ...], int], nn.Module] | None,
    model: nn.Module,
    logits: Tensor,
    found: _Found,
    batch_dim: int,
    class_token: bool,
    mask: str | None,
    example: Any,
) -> tuple[nn.Module, bool]:
    """A head for features of this shape, where and of the type they are, and whether it takes the padding mask."""
    classes, shape = logits.shape[-1], found.shape or ()
    if head is not None:
        return head(shape, classes).to(logits), False
    channels = _channels(shape, model.get_submodule(found.place[0]))
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
