"""Any PyTorch model to an anytime network: cut where the cost is even, with heads made to fit."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from anytime.conversion.graph import Captured, NotCaptured
from anytime.conversion.heads import make_head
from anytime.conversion.network import ConvertedNetwork, Exit
from anytime.conversion.pausing import Pause, Place, Watch, first_tensor
from anytime.conversion.stages import Trunk
from anytime.conversion.survey import Survey, choose, what
from anytime.errors import AnytimeError


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
            survey = Survey(trunk, example)
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
    net.input_form = tree_map(_form, example)
    return net.train(was_training)


def _by_graph(trunk: Trunk, example: Any, survey: Survey, exits: Any, head: Any) -> ConvertedNetwork:
    captured = Captured(trunk, example)
    usable = []
    for found in survey.found:
        node = captured.result(*found.place) if found.shape else None
        rows = captured.rows(node) if node is not None else None
        if node is not None and rows is not None and rows.one_each and node is not captured.output:
            position = captured.position[node]
            usable.append(replace(found, order=position, live=captured.live(position), node=node))
    chosen = choose(trunk.model, survey, usable, exits)
    mask = _mask(example)
    names = [key for key, leaf in example.items() if isinstance(leaf, Tensor)] if isinstance(example, dict) else []
    extra = [names.index(mask)] if mask else []
    cut = captured.cut([*(found.node for found in chosen), captured.output], extra)
    heads = []
    for found, (_, index, masks) in zip(chosen, cut, strict=False):
        rows = captured.rows(found.node)
        assert rows is not None
        token = captured.has_class_token(found.node)
        made, masked = make_head(
            head, trunk.model, survey.logits, found.shape or (), found.place[0], rows.dim, token, mask, example
        )
        heads.append(Exit(made, index, (mask, masks[0]) if mask and masked else None))
    stages = [stage for stage, _, _ in cut]
    net = ConvertedNetwork(
        trunk, stages, [*heads, Exit(nn.Identity(), cut[-1][1])], [f.place for f in chosen], survey, None
    )
    _verify(net, example, survey)
    return net


def _verify(net: ConvertedNetwork, example: Any, survey: Survey) -> None:
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
    trunk: Trunk, example: Any, survey: Survey, exits: Any, head: Any, reason: str
) -> ConvertedNetwork:  # fmt: skip
    usable = [
        replace(found, live=0 if found.place[0][-1].isdigit() else 1)  # blocks, by their names, rather than their parts
        for found in survey.found
        if found.shape and found.shape[0] == survey.batch
    ]
    chosen = choose(trunk.model, survey, usable, exits)
    mask, heads = _mask(example), []
    for found in chosen:
        made, masked = make_head(
            head, trunk.model, survey.logits, found.shape or (), found.place[0], 0, True, mask, example
        )
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
        f"the model returns {what(output)}, with no logits in it; say where they are: "
        "convert(…, logits=lambda output: …), or convert a model with a classifier"
    )


def _two_samples(example: Any) -> Any:
    """With one sample alone torch.export would take its number for fixed."""
    batch = next(len(leaf) for leaf in tree_leaves(example) if isinstance(leaf, Tensor))
    if batch > 1:
        return example
    return tree_map(lambda leaf: torch.cat([leaf, leaf]) if _is_batch(leaf, 1) else leaf, example)


def _form(leaf: Any) -> str:
    return f"{leaf.ndim}-dimensional {leaf.dtype}" if isinstance(leaf, Tensor) else type(leaf).__name__


def _is_batch(leaf: Any, batch: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == batch


def _mask(example: Any) -> str | None:
    """The name of the padding mask among the inputs."""
    mask = example.get("attention_mask") if isinstance(example, dict) else None
    return "attention_mask" if isinstance(mask, Tensor) and mask.ndim == 2 else None
