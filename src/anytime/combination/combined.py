"""CombinedNetwork: a network whose exits answer together; ``combine`` makes one."""

from collections.abc import Iterable, Iterator
from inspect import signature
from typing import Any, cast

from torch import Tensor, nn

from anytime.combination.boosting import Boosting
from anytime.combination.ensemble import Ensemble
from anytime.combination.product import Product
from anytime.combination.rule import Rule
from anytime.combination.stacking import Stacking
from anytime.errors import AnytimeError, check_integer, options_of, shown
from anytime.evaluation import collect
from anytime.meta import keeps_input
from anytime.network import Network, ReachedExit, Step, weights_device
from anytime.preprocessing import Preprocessing

RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (Ensemble, Stacking, Product, Boosting)}
NAME = "combined"
"""The name of such a network in ``config.json``."""


def combine(
    net: Network,
    rule: str = "ensemble",
    batches: Iterable[tuple[Any, Tensor]] | None = None,
    inputs: int | Iterable[int] | None = None,
    **options: Any,
) -> "CombinedNetwork":
    """A network whose exits answer with what all exits so far say together.

    - ``ensemble``: a weighted mean of their log-probabilities, usually a little better than the exit's own answer.
    - ``stacking``: a linear function of their logits, fitted on the training images.
    - ``product``: what no exit has ruled out; the probability of the truth rarely falls from exit to exit.
    - ``boosting``: each exit corrects those before it; combine before training.

    It is an anytime network as any other: ``predict``, ``start``, ``calibrate``, ``evaluate``, ``save`` and ``load``
    take it, and count the heads that run on the way as part of its stages.

    Args:
        net: the network; it is shared, not copied.
        rule: one of the above.
        batches: of inputs and labels, to fit ``ensemble`` (held-out ones) or ``stacking`` (the training images, or
            held-out ones where the network has learned those by heart) with.
        inputs: the exits that later ones take into account with ``ensemble`` or ``stacking``, or how many, evenly
            spread. Their heads always run, all others only to answer: fewer are faster. Default: all exits.
        options: of the rule, e.g. ``share=0.5`` of ``boosting``.

    Examples:
        >>> import anytime
        >>> data = anytime.load_data("digits")
        >>> net = anytime.create_model("resann-1-8", in_channels=1)
        >>> together = anytime.combine(net, "ensemble", data.batches(data.validation)).eval()
        >>> anytime.predict(together, data.normalize(data.test.pixels[:2]), exits=2).logits.shape
        torch.Size([2, 10])
    """
    if not isinstance(net, Network):
        raise AnytimeError(f"combine expects an AnytimeNetwork, not a {type(net).__name__}: see anytime.convert")
    if net.exported:
        raise AnytimeError(
            "this network is exported: combine the network itself and export that, "
            "anytime.export.onnx(anytime.combine(net), x, folder)"
        )
    if not isinstance(rule, str) or rule not in RULES:
        raise AnytimeError(f"rule={shown(rule)} must be one of {', '.join(RULES)}")
    if isinstance(inputs, int):
        inputs = spread(net.exits, inputs)
    try:
        made = RULES[rule](net.exits, **options if inputs is None else {"inputs": inputs, **options})  # type: ignore[call-arg]
    except TypeError:
        raise AnytimeError(f"combine(net, {rule!r}): {rule} takes {options_of(RULES[rule])}") from None
    if batches is not None:
        if not isinstance(made, Ensemble | Stacking):
            raise AnytimeError(f"rule={rule!r} has nothing to fit: leave batches out")
        made.fit(collect(net, batches))
    elif isinstance(made, Stacking) and not made.classes:
        raise AnytimeError("combine(net, 'stacking') must be fitted: add batches, e.g. data.batches(data.train)")
    return CombinedNetwork(net, made)


def spread(exits: int, count: int) -> list[int]:
    """So many exits before the last one, evenly spread.

    Examples:
        >>> spread(15, 2), spread(15, 4), spread(3, 9)
        ([4, 9], [2, 5, 8, 11], [0, 1])
    """
    count = min(check_integer("inputs", count, least=0), exits - 1)
    return [(i + 1) * exits // (count + 1) - 1 for i in range(count)]


class CombinedNetwork(Network):
    """A network whose exits answer together; ``combine`` makes it.

    A stage of it is a stage of the network, with its head if later exits take its logits into account. The state
    between stages is what the network's own stages pass on, and these logits so far. An exit of it is the exit's own
    head, if that has not run, and the rule.

    Attributes:
        net: the network that is combined.
        rule: how.
    """

    answers_together = True

    def __init__(self, net: Network, rule: Rule) -> None:
        super().__init__()
        units = net.units
        if not net.chained:
            raise AnytimeError(
                f"the stages of this {type(net).__name__} are those of several networks: combine the members of an "
                "ensemble, anytime.EANN([anytime.combine(net) for net in eann.members])"
            )
        if None in net.stage_exits:
            raise AnytimeError(
                f"stage {net.stage_exits.index(None)} of this {type(net).__name__} has no exit: combine a network "
                "with an exit after each stage"
            )
        self.net, self.rule = net, rule.to(weights_device(net))
        self.image_size, self.in_channels = net.image_size, net.in_channels
        self.input_form, self.paused_because = net.input_form, net.paused_because
        if net.config and net.config.get("model"):
            inner = {key: value for key, value in net.config.items() if key != "about"}
            self.config = {"model": NAME, "rule": rule.name, "options": rule.options(), "network": inner}
        # In a tuple, so that they are not submodules a second time.
        self._units = tuple(
            (CombinedStage(i, stage, head if i in rule.inputs else None), CombinedHead(i, cast(nn.Module, head), rule))
            for i, (stage, head) in enumerate(units)
        )

    @property
    def stage_exits(self) -> list[int | None]:
        """Every stage has an exit."""
        return list(range(len(self._units)))

    def run_stage(self, stage: int, state: Any) -> Any:
        """Run one stage of the network, and its head if later exits need it; see ``Network``."""
        return self._units[stage][0](state)

    def exit_after(self, stage: int, state: Any) -> ReachedExit:
        """The exit after a stage; see ``Network``."""
        return ReachedExit(self._units[stage][1], state, stage)

    @property
    def units(self) -> list[tuple[nn.Module, nn.Module | None]]:
        """The stages, each with the head that gives its answer."""
        return list(self._units)

    @property
    def trained_units(self) -> list[tuple[nn.Module, nn.Module | None]]:
        """Those of the network."""
        return self.net.trained_units

    @property
    def stages(self) -> list[nn.Module]:
        """The stages of the network, with the heads that always run."""
        return [stage for stage, _ in self._units]

    @property
    def heads(self) -> list[nn.Module]:
        """What makes the answer."""
        return [answer for _, answer in self._units]

    @property
    def preprocessing(self) -> Preprocessing | None:  # type: ignore[override]
        """That of the network."""
        return self.net.preprocessing

    @preprocessing.setter
    def preprocessing(self, preprocessing: Preprocessing | None) -> None:  # type: ignore[override]
        self.net.preprocessing = preprocessing

    def layout(self) -> dict[str, Any]:
        """That of the network, and the rule, with its options where they are not the usual ones."""
        usual = signature(type(self.rule)).parameters
        options = {name: value for name, value in self.rule.options().items() if value != usual[name].default}
        return {"rule": self.rule.name, "network": self.net.layout()} | ({"options": options} if options else {})

    def _steps(self, x: Any, wanted: frozenset[int]) -> Iterator[Step]:
        # By the network's own steps: in training mode a converted network runs its own code, not its stages.
        own: dict[int, Tensor] = {}
        needed = {i for exit in wanted for i in self.rule.heard(exit)}
        for step in self.net.steps(x, needed):
            own[step.exit] = step.logits
            if step.exit in wanted:
                yield Step(step.exit, self.rule(step.exit, [own[i] for i in self.rule.heard(step.exit)]))


Memory = tuple[Tensor, ...]
"""The logits of the rule's inputs so far."""


class CombinedStage(nn.Module):
    """A stage of a network: from its own state and the memory to the next ones; with a head, whose logits are kept."""

    def __init__(self, exit: int, stage: nn.Module, head: nn.Module | None) -> None:
        super().__init__()
        self.exit, self.stage, self.head = exit, stage, head

    def forward(self, state: Any) -> tuple[Any, Memory]:
        """The network's own state, and the memory."""
        inner, memory = state if self.exit else (state, ())
        inner = self.stage(inner)
        return inner, memory if self.head is None else (*memory, ReachedExit(self.head, inner, self.exit)())

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Those of the stage and of the head; stages of converted networks have theirs elsewhere."""
        yield from self.stage.parameters(recurse)
        if self.head is not None:
            yield from self.head.parameters(recurse)


class CombinedHead(nn.Module):
    """An exit's answer: its own head, unless that has run, and the rule."""

    def __init__(self, exit: int, head: nn.Module, rule: Rule) -> None:
        super().__init__()
        self.exit, self.rule = exit, rule
        self.head = None if exit in rule.inputs else head

    @keeps_input
    def forward(self, state: tuple[Any, Memory]) -> Tensor:
        """The answer."""
        inner, memory = state
        return self.rule(self.exit, memory if self.head is None else (*memory, self.head(inner)))
