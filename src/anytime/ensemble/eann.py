"""EANN: anytime networks of exponentially growing cost, one after another (Sec. 4 of the paper)."""

import copy
from bisect import bisect_left
from collections.abc import Generator, Iterable, Mapping
from functools import cache
from itertools import chain
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anytime.batches import as_batch, check_batches, one_sample
from anytime.cost import costs
from anytime.errors import AnytimeError
from anytime.evaluation import collect
from anytime.models import create_model, resann
from anytime.network import Network, ReachedExit, clone_tensors
from anytime.preprocessing import Preprocessing


class EnsembleState(NamedTuple):
    """The state of an ensemble between two stages."""

    inputs: Any
    """The input, for the networks that follow; None when the last one has begun."""
    state: Any
    """The state of the network that runs."""


class EANN(Network):
    """Networks that run in the order of their cost, as one anytime network.

    A prediction is offered only if its exit was better on validation images than every exit before it (``fit_order``).
    What is not needed for the offered exits does not run: other heads, stages after a network's last offered exit, and
    networks without an offered exit. Before ``fit_order`` all exits are offered.

    Networks with one exit make a sequence of plain networks, the paper's baseline (Fig. 5b).

    Args:
        members: the networks, trained for the same task; they are shared, not copied.
        example: an input to count the costs with, which give the order. By default an image of the size that the
            members are made for; networks without such a size keep the given order until ``fit_order`` sees an input.

    Examples:
        >>> import anytime
        >>> data = anytime.load_data("digits")
        >>> nets = [anytime.create_model(f"resann-{n}-8", in_channels=1) for n in (1, 2)]
        >>> eann = anytime.EANN(nets, example=torch.zeros(1, 1, 8, 8)).eval()
        >>> eann.exits                                              # 3 of the first network, 6 of the second
        9
        >>> errors = eann.fit_order(data.batches(data.validation))
        >>> len(errors), errors[0] == max(errors[member * 3 + exit] for member, exit in eann.offered)
        (9, True)
    """

    chained = False

    def __init__(self, members: Iterable[Network], example: Any = None) -> None:
        super().__init__()
        given: list[Any] = [members] if isinstance(members, nn.Module) else list(members or ())
        if not given:
            raise AnytimeError("an ensemble needs at least one network: anytime.EANN([net1, net2])")
        for member in given:
            if isinstance(member, EANN):
                raise AnytimeError(
                    "a member is itself an ensemble: give the networks themselves, anytime.EANN([*eann.members])"
                )
            if not isinstance(member, Network):
                raise AnytimeError(
                    f"a {type(member).__name__} is not an anytime network: anytime.create_model builds one, "
                    "anytime.convert makes one from a model"
                )
            if member.exported:
                raise AnytimeError("a member is exported: export their ensemble, anytime.export.onnx(eann, x, folder)")
        if len({id(member) for member in given}) < len(given):
            raise AnytimeError("members has the same network twice: each must be another one")
        self.members = nn.ModuleList(given)
        self.image_size = max(member.image_size or 0 for member in given) or None
        self.in_channels = given[0].in_channels
        self.input_form = next((member.input_form for member in given if member.input_form), None)
        self.paused_because = next((member.paused_because for member in given if member.paused_because), None)
        self._set_offered(self._all_exits(example))
        configs = [member.config for member in given]
        if all(config and config.get("model") for config in configs):
            bare = [{key: value for key, value in config.items() if key != "about"} for config in configs if config]
            self.config = {"model": NAME, "members": bare}

    @property
    def _networks(self) -> list[Network]:
        return list(self.members)  # type: ignore[arg-type]

    def network(self, member: int) -> Network:
        """One of the members."""
        return self.members[member]  # type: ignore[return-value]

    @property
    def offered(self) -> list[tuple[int, int]]:
        """The exits that are offered, in the order in which they are reached: member and exit of that member.

        ``eann.offered[prediction.exit]`` says where a prediction comes from.
        """
        return self._offered

    @offered.setter
    def offered(self, exits: Iterable[tuple[int, int]]) -> None:
        self._set_offered([(int(member), int(exit)) for member, exit in exits])
        self.forget()  # other stages run now

    def _set_offered(self, pairs: list[tuple[int, int]]) -> None:
        networks, by_member = self._networks, dict[int, list[int]]()
        for member, exit in pairs:
            if not (0 <= member < len(networks) and 0 <= exit < networks[member].exits):
                raise AnytimeError(f"offered: there is no exit {exit} of network {member}")
            by_member.setdefault(member, []).append(exit)
        reached = [(member, exit) for member, exits in by_member.items() for exit in sorted(set(exits))]
        if not pairs or pairs != reached:
            raise AnytimeError(
                "offered must be one or more (member, exit) in the order in which they are reached, network by network"
            )
        self._offered, self._by_member = pairs, by_member
        self._places = [(member, i) for member, exits in by_member.items() for i in range(exits[-1] + 1)]
        index = {pair: i for i, pair in enumerate(pairs)}
        self._stage_exits = [index.get(place) for place in self._places]

    @property
    def exits(self) -> int:
        """Number of offered exits."""
        return len(self.offered)

    @property
    def preprocessing(self) -> Preprocessing | None:  # type: ignore[override]
        """The preprocessing of the members if all have the same, else None; setting it sets it for every member."""
        first, *others = (member.preprocessing for member in self._networks)
        return first if all(other == first for other in others) else None

    @preprocessing.setter
    def preprocessing(self, preprocessing: Preprocessing | None) -> None:  # type: ignore[override]
        for member in self._networks:
            member.preprocessing = preprocessing

    def layout(self) -> dict[str, Any]:
        """The layout of every member."""
        return {"members": [member.layout() for member in self._networks]}

    @property
    def order(self) -> list[int]:
        """The members that run, cheapest first."""
        return list(self._by_member)

    @property
    def units(self) -> list[tuple[nn.Module, nn.Module | None]]:
        """The stages that run, each with its head; None where it has no exit, or one that is not offered."""
        return self._running([member.units for member in self._networks])

    @property
    def trained_units(self) -> list[tuple[nn.Module, nn.Module | None]]:
        """Likewise, as the members are trained."""
        return self._running([member.trained_units for member in self._networks])

    def _running(
        self, units: list[list[tuple[nn.Module, nn.Module | None]]]
    ) -> list[tuple[nn.Module, nn.Module | None]]:
        """Of the units of each member those that run, without the heads of exits that are not offered."""
        return [
            (units[member][exit][0], units[member][exit][1] if exit in self._by_member[member] else None)
            for member, exit in self._places
        ]

    @property
    def stages(self) -> list[nn.Module]:
        """The stages that run."""
        return [stage for stage, _ in self.units]

    @property
    def heads(self) -> list[nn.Module]:
        """The heads of the offered exits."""
        return [head for _, head in self.units if head is not None]

    def walk(self, x: Any) -> Generator[ReachedExit | None, Tensor | None, None]:
        """See ``Network``; a walk keeps to the order that it began with, whatever is offered meanwhile."""
        return Network.walk(copy.copy(self), x)

    @property
    def stage_exits(self) -> list[int | None]:
        """For each stage that runs, the offered exit after it; None where it has none."""
        return self._stage_exits

    def run_stage(self, stage: int, state: Any) -> EnsembleState:
        """Run one stage; the state after it holds the input too, as long as a network follows."""
        member, inner = self._places[stage]
        inputs, state = (state, None) if stage == 0 else state
        if inner == 0:
            last = member == self._places[-1][0]
            # A network may change its input in place; those after it need it as it was.
            inputs, state = (None, inputs) if last else (inputs, clone_tensors(inputs))
        return EnsembleState(inputs, self.network(member).run_stage(inner, state))

    def exit_after(self, stage: int, state: EnsembleState) -> ReachedExit | None:
        """The offered exit after a stage, if there is one. The next stage may change its state, exit or not."""
        offered, (member, inner) = self._stage_exits[stage], self._places[stage]
        if offered is None:
            return None
        reached = self.network(member).exit_after(inner, state.state)
        assert reached is not None
        reached.exit = offered
        return reached

    def fit_order(self, validation: Iterable[tuple[Any, Tensor]]) -> list[float]:
        """Find on held-out data which exits to offer: those with fewer errors than all before them.

        So the errors of the offered exits decrease strictly, and the last of them is the best of all exits. ``save``
        writes them with the model.

        Args:
            validation: batches of inputs and labels, iterated once; e.g. ``data.batches(data.validation)``.

        Returns:
            The error of every exit of every network, in the order of the networks' costs.
        """
        check_batches("fit_order", validation)
        batches = iter(validation)
        first = list(next(zip(batches, strict=False), ()))
        before = self._offered
        try:
            example = one_sample(as_batch(self, first[0]).inputs) if first else None
            self.offered = everything = self._all_exits(example)
            wrong = collect(self, chain(first, batches)).wrong
            errors = wrong.double().mean(1).tolist()
            self.offer(dict(zip(everything, errors, strict=True)))
        except BaseException:
            self.offered = before
            raise
        return errors

    def offer(self, errors: Mapping[tuple[int, int], float]) -> None:
        """Choose the exits to offer by their errors, as ``fit_order`` does once it knows them.

        Args:
            errors: of each (member, exit), in the order in which they are reached.
        """
        best, offered = inf, []
        if not errors or any(error != error for error in errors.values()):
            raise AnytimeError("no errors to order the exits by: validation needs at least one sample")
        for exit, error in errors.items():
            if error < best:
                best = error
                offered.append(exit)
        self.offered = offered

    def _all_exits(self, example: Any) -> list[tuple[int, int]]:
        """All exits of all networks, the cheapest network first."""
        networks = self._networks
        members = list(range(len(networks)))
        if example is None and self.image_size and self.in_channels:
            example = torch.empty(1, self.in_channels, self.image_size, self.image_size, device="meta")
        if example is not None and len(members) > 1:
            spent = [costs(network, example).macs[-1] for network in networks]
            members.sort(key=spent.__getitem__)
        return [(member, exit) for member in members for exit in range(networks[member].exits)]

    def get_extra_state(self) -> Tensor:
        """The offered exits, for ``state_dict``."""
        return torch.tensor(self._offered, dtype=torch.int64, device="cpu").view(-1, 2)

    def set_extra_state(self, state: Tensor) -> None:
        """Set the offered exits from ``state_dict``; raises if these networks do not have them."""
        self.offered = state.tolist()

    @staticmethod
    def plan(smallest: str, largest: str, base: float = 2.0) -> list[str]:
        """Names of networks whose costs grow by at most ``base``, from the largest down to the smallest.

        The largest is what the ensemble ends with. Each smaller one is the cheapest of its family that costs at least
        1/base of the next: then the depths at which the next is not yet good are covered (Sec. 4).

        Args:
            smallest: the smallest network that may be planned, e.g. ``resann-7-32`` or ``resann26``.
            largest: the largest one, of the same family, e.g. ``resann-25-32`` or ``resann101``.
            base: b, a number above 1.

        Examples:
            >>> EANN.plan("resann-7-32", "resann-25-32")
            ['resann-7-32', 'resann-13-32', 'resann-25-32']
            >>> EANN.plan("resann26", "resann101")
            ['resann26', 'resann50', 'resann101']
        """
        if not base > 1:
            raise AnytimeError(f"base={base} must be a number above 1")
        family = resann.between(smallest, largest)  # cheapest first
        cost = cache(_cost_of)
        planned = [len(family) - 1]
        while planned[0] > 0:
            needed = cost(family[planned[0]]) / base
            enough = bisect_left(family, needed, hi=planned[0], key=cost)
            planned.insert(0, min(enough, planned[0] - 1))
        return [family[i] for i in planned]


NAME = "eann"
"""The name of an ensemble in ``config.json``."""


def _cost_of(name: str) -> int:
    with torch.device("meta"):
        net = create_model(name)
    return costs(net, torch.empty(1, *net.input_shape(), device="meta")).macs[-1]
