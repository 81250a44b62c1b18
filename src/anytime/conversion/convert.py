"""convert: any PyTorch model to an anytime network, with exits spread evenly over its cost."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves, tree_map

from anytime.conversion.converted import ConvertedNetwork, Exit
from anytime.conversion.graph import Captured, NotCaptured
from anytime.conversion.heads import HeadFactory, HeadMaker
from anytime.conversion.outputs import find_logits
from anytime.conversion.pausing import Pause
from anytime.conversion.published import preprocessing_for
from anytime.conversion.sizes import Graphs
from anytime.conversion.stages import GraphStage, Trunk, image_size
from anytime.conversion.survey import Found, Survey, choose
from anytime.conversion.tail import OwnExit, OwnTail, fitting, last_block
from anytime.conversion.verification import observe, two_samples, verify
from anytime.errors import AnytimeError
from anytime.network import AnytimeNetwork, Network, eval_mode


def convert(
    model: nn.Module,
    example: Any,
    exits: int | float | Sequence[str] = 4,
    *,
    head: str | HeadMaker = "auto",
    logits: Callable[[Any], Tensor] | None = None,
    preprocessing: Any = None,
) -> ConvertedNetwork:
    """Make a model anytime. Its parameters are shared, not copied: training one trains the other.

    The model's graph is captured in eval mode and cut into stages; in training mode the model's own code runs, with
    its dropout, batch norm and gradient checkpointing. The model's own output is the last exit. A model whose graph
    cannot be captured is paused inside its own code instead, with a warning that says why and what is then missing.

    Args:
        model: takes the example and returns logits: a tensor, or an object, dict or tuple that contains them.
        example: an input: a tensor, a dict of keyword arguments, or a tuple of arguments; samples along the first
            dimension. One sample is enough. The network takes any number of samples, and other numbers of tokens and
            image sizes if the model does; the first image of another size takes as long as the conversion did.
        exits: the number of exits, spread evenly over the cost, the model's own output included; or the share of the
            cost between two exits (0.25 gives four); or the names of the modules after which to exit, in order. The
            model's own output is added unless hardly anything follows the last named module.
        head: the heads of the exits. ``"linear"``: for one output per sample BN – ReLU – pool – linear for feature
            maps, as in the paper, class token or mean without padding – layer norm – linear for tokens, layer norm –
            linear for vectors; for an output per pixel BN – ReLU – 1×1 convolution – interpolation to the output's
            size; for an output per token layer norm – linear. ``"mlp"``: with a hidden layer; feature maps are
            described by mean and deviation of each channel in a grid. ``"auto"``: ``"mlp"`` for feature maps and
            ``"linear"`` elsewhere. ``"own"``: the model's own tail, what follows its last block, with shared
            parameters: exit k answers exactly what the model with its blocks cut to k answers; for models whose
            blocks return features of one shape, and images of the example's size. Or a function: ``head(shape,
            outputs)`` gets the shape of the features in the example, samples first, and the number of outputs: of
            classes, or of channels where the model has an output for each pixel or token; the head must return the
            shape of the model's own output.
        logits: returns the logits, given the model's output, if they cannot be found in it by their name.
        preprocessing: what the model expects of its images: an ``anytime.Preprocessing``, a dict with ``mean`` and
            ``std``, torchvision's ``weights.transforms()``, or an image processor of transformers. Default: timm's
            description of the weights, if the model has one. ``fit`` and ``evaluate`` then normalize a ``Data`` so.

    Examples:
        >>> model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(6)), nn.Linear(16, 3))
        >>> net = convert(model, torch.zeros(1, 16), exits=3)
        >>> net.exits, net.places
        (3, ['1', '3', "the model's own"])
        >>> x = torch.randn(5, 16)
        >>> torch.equal(net.eval()(x)[-1], model(x))
        True
    """
    _check_model(model)
    example = dict(example) if isinstance(example, Mapping) else example
    _check_example(example)
    was_training = model.training
    with eval_mode(model), torch.no_grad():
        trunk = Trunk(model, logits or find_logits).eval()
        example = two_samples(example)
        survey = Survey(trunk, example)
        heads = HeadFactory(model, survey.logits, image_size(example), head)
        try:
            net = _by_graph(trunk, example, survey, exits, heads)
        except NotCaptured as reason:
            if heads.own:
                raise AnytimeError(f"head='own' needs the model's graph, and {reason}; use another head") from reason
            net = _by_pausing(trunk, example, survey, exits, heads, str(reason))
            warnings.warn(
                f"{type(model).__name__} is paused inside its own code at the exits, since {reason}; so samples "
                "cannot leave a batch one by one (policy.predict), and its stages cannot be exported",
                stacklevel=2,
            )
        net.train(was_training)  # for the new heads; the model's modules keep their own modes
    image = example if isinstance(example, Tensor) and example.ndim == 4 else None
    if image is not None:
        height, width = image.shape[2:]
        net.preprocessing = preprocessing_for(model, preprocessing, image.shape[1], (height, width))
    elif preprocessing is not None:
        raise AnytimeError("preprocessing= is for images: an example of shape samples × channels × height × width")
    return net


def _check_model(model: Any) -> None:
    if isinstance(model, Network):
        raise AnytimeError(f"this {type(model).__name__} is an anytime network already; convert takes a plain model")
    if isinstance(model, nn.Module):
        return
    if isinstance(model, str):
        hint = f"build it first, e.g. convert(timm.create_model({model!r}, pretrained=True), example)"
    elif inspect.isclass(model) and issubclass(model, nn.Module):
        hint = f"this is a class; build the model first: convert({model.__name__}(…), example)"
    else:
        hint = "convert(model, example)"
    raise AnytimeError(f"got {model!r:.80} as the model; expected an nn.Module: {hint}")


def _check_example(example: Any) -> None:
    leaves = tree_leaves(example, is_leaf=lambda leaf: isinstance(leaf, PackedSequence))
    if any(isinstance(leaf, PackedSequence) for leaf in leaves):
        raise AnytimeError(
            "the example contains a packed sequence, which has no row for each sample; pass the padded tensor and the "
            "lengths, convert(model, (padded, lengths)), and pack them inside the model"
        )
    if any(isinstance(leaf, np.ndarray) for leaf in leaves):
        raise AnytimeError("the example contains a NumPy array; expected tensors: torch.from_numpy(array)")
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if not tensors or not all(leaf.ndim and len(leaf) for leaf in tensors):
        raise AnytimeError(
            f"the example is {type(example).__name__}; expected an input of the model: a tensor, a dict of keyword "
            "arguments or a tuple of arguments, with samples along the first dimension of each tensor"
        )


def _by_graph(trunk: Trunk, example: Any, survey: Survey, exits: Any, heads: HeadFactory) -> ConvertedNetwork:
    captured = Captured(trunk, example)
    usable = []
    for found in survey.found:
        node = captured.result(*found.place, found.shape) if found.shape else None
        rows = captured.rows(node) if node is not None else None
        if node is not None and rows is not None and rows.each == 1 and node is not captured.output:
            end = captured.end(node)
            usable.append(replace(found, order=end, live=captured.live(end), node=node, batch_dim=rows.dim))
    if heads.own:
        return _by_own_tail(trunk, example, survey, exits, heads, captured, usable)
    chosen = _choose(trunk, survey, usable, exits, heads)
    places = [found.place for found in chosen]
    features = observe(trunk, places, example)
    mask = _mask(example)
    names = [key for key, leaf in example.items() if isinstance(leaf, Tensor)] if isinstance(example, dict) else []
    extra = [names.index(mask)] if mask else []
    cut = captured.cut([*(found.node for found in chosen), captured.output], extra)
    made = []
    for found, (_, index, masks) in zip(chosen, cut, strict=False):
        value, changed_later = features[found.place]
        token = captured.has_class_token(found.node)
        value = value.movedim(found.batch_dim, 0)
        head, masked = heads.make(value, found.place[0], token, example[mask] if mask else None)
        made.append(Exit(head, index, found.batch_dim, (mask, masks[0]) if mask and masked else None, changed_later))
    exits = [*made, Exit(nn.Identity(), cut[-1][1])]
    graphs = Graphs(trunk, exits, places, survey.names(places), extra)
    graphs.add([part for part, _, _ in cut], example, survey.logits, features)
    return ConvertedNetwork(trunk, graphs.stages, exits, places, survey, tree_map(_form, example))


def _by_own_tail(
    trunk: Trunk,
    example: Any,
    survey: Survey,
    exits: Any,
    heads: HeadFactory,
    captured: Captured,
    usable: list[Found],
) -> ConvertedNetwork:
    """A network whose exits are the model's own tail."""
    blocks = fitting(captured, usable)
    if not blocks:
        raise AnytimeError(
            f"head='own': the tail of this {type(trunk.model).__name__} takes the features of its last block only; use "
            "head='mlp' or 'linear'"
        )
    chosen = _choose(trunk, survey, usable if isinstance(exits, str | list | tuple) else blocks, exits, heads)
    if wrong := [found.place[0] for found in chosen if found not in blocks]:
        raise AnytimeError(
            f"head='own': the model's own tail does not take the features after {wrong[0]}; it takes those after "
            f"{', '.join(found.place[0] for found in blocks[:4])}{', …' if len(blocks) > 4 else ''}"
        )
    places = [found.place for found in chosen]
    features = observe(trunk, places, example)
    tails = [OwnTail(trunk, captured, last_block(found, usable)) for found in chosen]
    extra = sorted({user for tail in tails for user in tail.users})
    cut = captured.cut([*(found.node for found in chosen), captured.output], extra)
    made: list[Exit] = []
    for found, tail, (_, index, at) in zip(chosen, tails, cut, strict=False):
        where = [at[extra.index(user)] for user in tail.users]
        changed_later = features[found.place].changed_later
        made.append(OwnExit(tail.eval(), index, found.batch_dim, where, captured.inputs, changed_later))
    stages = [GraphStage(trunk, [part]) for part, _, _ in cut]
    heads_made = [*made, Exit(nn.Identity(), cut[-1][1])]
    names = survey.names(places)
    verify(AnytimeNetwork(stages, heads_made), trunk, names, example, survey.logits, features)
    return ConvertedNetwork(trunk, stages, heads_made, places, survey, tree_map(_form, example))


def _by_pausing(
    trunk: Trunk, example: Any, survey: Survey, exits: Any, heads: HeadFactory, reason: str
) -> ConvertedNetwork:  # fmt: skip
    usable = [
        replace(found, live=0 if found.place[0][-1].isdigit() else 1)  # prefer blocks, by their names, to their parts
        for found in survey.found
        if found.shape and found.shape[0] == survey.batch
    ]
    chosen = _choose(trunk, survey, usable, exits, heads)
    places = [found.place for found in chosen]
    mask, made = _mask(example), []
    for place, (value, changed_later) in observe(trunk, places, example).items():
        head, masked = heads.make(value, place[0], True, example[mask] if mask else None)
        made.append(Exit(head, 0, 0, (mask, 0) if mask and masked else None, changed_later))
    orders = [-1, *(found.order for found in chosen), len(survey.found)]
    modules = dict(trunk.model.named_modules())
    stages, seen = [], set[str]()
    for i, (after, until) in enumerate(pairwise(orders)):
        names = [
            f"model.{module}.{name}" for module in survey.called(after, until)
            for name, _ in modules[module].named_parameters(recurse=False)
        ]  # fmt: skip
        if until == len(survey.found):  # and those that are used outside of any module's call
            names = [name for name, _ in trunk.named_parameters()]
        stages.append(Pause(trunk, places, [name for name in names if name not in seen], first=i == 0))
        seen |= set(names)
    heads_made = [*made, Exit(nn.Identity(), 0)]
    return ConvertedNetwork(trunk, stages, heads_made, places, survey, tree_map(_form, example), reason)


def _choose(trunk: Trunk, survey: Survey, usable: list[Found], exits: Any, heads: HeadFactory) -> list[Found]:
    """The places of the exits. Named modules are taken as they are; otherwise there must be a head for the place."""
    if isinstance(exits, str | list | tuple):
        return choose(trunk.model, survey, usable, exits)
    fitting = [f for f in usable if heads.fits(_samples_first(f), f.place[0])]
    try:
        return choose(trunk.model, survey, fitting, exits)
    except AnytimeError:
        if usable and not fitting:
            raise heads.no_default(_samples_first(usable[-1]), usable[-1].place[0]) from None
        raise


def _samples_first(found: Found) -> tuple[int, ...]:
    assert found.shape is not None
    shape = list(found.shape)
    return (shape.pop(found.batch_dim), *shape)


def _form(leaf: Any) -> str:
    return f"{leaf.ndim}-dimensional {leaf.dtype}" if isinstance(leaf, Tensor) else type(leaf).__name__


def _mask(example: Any) -> str | None:
    """The name of the padding mask among the inputs."""
    mask = example.get("attention_mask") if isinstance(example, dict) else None
    return "attention_mask" if isinstance(mask, Tensor) and mask.ndim == 2 else None
