"""CombinedNetwork: a network whose exits answer together; ``combine`` makes one."""

from collections.abc import Iterable, Iterator
from inspect import signature
from itertools import chain
from typing import Any

from torch import Tensor, nn

from anytime.combination.boosting import Boosting
from anytime.combination.ensemble import Ensemble
from anytime.combination.product import Product
from anytime.combination.rule import Memory, Rule
from anytime.combination.stacking import Stacking
from anytime.errors import AnytimeError, options_of, shown
from anytime.evaluation import collect
from anytime.network import Network, ReachedExit, Step, weights_device
from anytime.preprocessing import Preprocessing

RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (Ensemble, Stacking, Product, Boosting)}
NAME = "combined"
"""The name of such a network in ``config.json``."""


def combine(
    net: Network, rule: str = "ensemble", batches: Iterable[tuple[Any, Tensor]] | None = None, **options: Any
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
    try:
        made = RULES[rule](net.exits, **options)  # type: ignore[call-arg]
    except TypeError:
        raise AnytimeError(f"combine(net, {rule!r}): {rule} takes {options_of(RULES[rule])}") from None
    if batches is not None:
        if not isinstance(made, Ensemble | Stacking):
            raise AnytimeError(f"rule={rule!r} has nothing to fit: leave batches out")
        made.fit(collect(net, batches))
    elif isinstance(made, Stacking) and not made.classes:
        raise AnytimeError("combine(net, 'stacking') must be fitted: add batches, e.g. data.batches(data.train)")
    return CombinedNetwork(net, made)


class CombinedNetwork(Network):
    """A network whose exits answer together; ``combine`` makes it.

    A stage of it is a stage of the network with its head and the rule. The state between stages is what the network's
    own stages pass on, and what the rule remembers of the exits so far, the latest answer first.

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
        self.net, self.rule = net, rule.to(weights_device(net))
        self.image_size, self.in_channels = net.image_size, net.in_channels
        self.input_form, self.paused_because = net.input_form, net.paused_because
        if net.config and net.config.get("model"):
            inner = {key: value for key, value in net.config.items() if key != "about"}
            self.config = {"model": NAME, "rule": rule.name, "options": rule.options(), "network": inner}
        # In a tuple, so that they are not submodules a second time.
        self._units = tuple((CombinedStage(i, *unit, rule), _Answer()) for i, unit in enumerate(units))  # type: ignore[arg-type]

    @property
    def stage_exits(self) -> list[int | None]:
        """Every stage has an exit."""
        return list(range(len(self._units)))

    def run_stage(self, stage: int, state: Any) -> Any:
        """Run one stage of the network, its head and the rule; see ``Network``."""
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
        """The stages of the network, with their heads and the rule."""
        return [stage for stage, _ in self._units]

    @property
    def heads(self) -> list[nn.Module]:
        """What takes the answer from the state."""
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
        memory = ()
        for step in self.net.steps(x, range(max(wanted, default=-1) + 1)):
            memory = self.rule(step.exit, step.logits, memory)
            if step.exit in wanted:
                yield Step(step.exit, memory[0])


class CombinedStage(nn.Module):
    """A stage of a network, its head, and the rule: from a state to the next one, with the answer in it."""

    def __init__(self, exit: int, stage: nn.Module, head: nn.Module, rule: Rule) -> None:
        super().__init__()
        self.exit, self.stage, self.head, self.rule = exit, stage, head, rule

    def forward(self, state: Any) -> tuple[Any, Memory]:
        """The network's own state, and what the rule remembers: the answer of this exit first."""
        inner, memory = state if self.exit else (state, ())
        inner = self.stage(inner)
        return inner, self.rule(self.exit, ReachedExit(self.head, inner, self.exit)(), memory)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Those of the stage and of the head; stages of converted networks have theirs elsewhere."""
        return chain(self.stage.parameters(recurse), self.head.parameters(recurse))


class _Answer(nn.Module):
    def forward(self, state: tuple[Any, Memory]) -> Tensor:
        """The answer in a state."""
        return state[1][0]
