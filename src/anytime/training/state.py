"""The state of a training run: everything that changes while it runs, which is what a checkpoint holds."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from anytime.errors import AnytimeError, check_integer, check_number
from anytime.files import check_tensors
from anytime.network import Network
from anytime.training.averaging import WeightAverage
from anytime.training.checkpoint import Groups
from anytime.training.epochs import Epochs, pack_state, unpack_state

MOMENTS = {"SGD": ("momentum_buffer",), "AdamW": ("step", "exp_avg", "exp_avg_sq")}
"""What each optimizer keeps for a parameter that has had a gradient."""


def named_parameters(net: Network, scheme: Callable[[Tensor], Tensor]) -> dict[str, nn.Parameter]:
    """The parameters to train by name: the network's, then those that the weight scheme learns."""
    weights = dict(net.named_parameters(prefix="net"))
    learned = scheme.named_parameters(prefix="scheme") if isinstance(scheme, nn.Module) else ()
    shared = {id(parameter) for parameter in weights.values()}
    return weights | {name: parameter for name, parameter in learned if id(parameter) not in shared}


class RunState:
    """Where a run is, and how the current epoch went so far.

    Random numbers follow from seed, epoch and position, so no generator has a state to keep.

    Args:
        average: the average of the weights.
        source: where the batches come from.
        run: a digest of what the run is; a checkpoint with another one is refused.
        epochs: the number of epochs.
        exits: the number of exits that are trained.
    """

    def __init__(
        self,
        net: Network,
        scheme: Callable[[Tensor], Tensor],
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        average: WeightAverage,
        source: Epochs,
        *,
        run: str,
        epochs: int,
        exits: int,
    ) -> None:
        self.net, self.optimizer, self.scaler, self.average, self.source = net, optimizer, scaler, average, source
        self.scheme = scheme if isinstance(scheme, nn.Module) else nn.Module()
        self.named = named_parameters(net, scheme)
        self.run, self.epochs, self.exits = run, epochs, exits
        self.epoch, self.position = 0, 0
        self.clear()

    @property
    def finished(self) -> bool:
        """Whether all epochs are done."""
        return self.epoch == self.epochs

    def clear(self) -> None:
        """Begin an epoch: no losses, no errors, no samples, no time."""
        # On the CPU wherever the network is: exact there, and some devices have no double precision.
        self.losses = torch.zeros(self.exits, dtype=torch.float64)
        self.errors = torch.zeros(self.exits, dtype=torch.float64)
        self.samples = 0.0
        self.pending: list[Tensor] = []
        self.seconds = 0.0

    def add(self, sums: Tensor) -> None:
        """Count a step: 3 × exits, the summed losses, the summed errors and the number of samples.

        Does not wait for the device.
        """
        self.pending.append(sums)

    def settle(self) -> None:
        """Add up the steps counted so far, in their order; this waits for the device."""
        if self.pending:
            for losses, errors, samples in torch.stack(self.pending).cpu():
                self.losses += losses
                self.errors += errors
                self.samples += samples[0].item()
            self.pending = []

    def capture(self) -> tuple[Groups, dict[str, Any]]:
        """Everything, as groups of named tensors and a JSON object."""
        self.settle()
        loader: dict[str, Tensor] = {}
        packed = pack_state(self.source.capture() if self.epoch or self.position else None, loader)
        moments = {
            f"{moment}:{name}": value
            for name, parameter in self.named.items()
            for moment, value in self.optimizer.state.get(parameter, {}).items()
            if value is not None
        }
        tensors = {
            "net": self.net.state_dict(),
            "scheme": self.scheme.state_dict(),
            "optimizer": moments,
            "average": self.average.capture(),
            "sums": {"losses": self.losses, "wrong": self.errors},
            "loader": loader,
        }
        about = {
            "run": self.run,
            "epoch": self.epoch,
            "position": self.position,
            "seconds": self.seconds,
            "scaler": self.scaler.state_dict(),
            "moments": len(moments),
            "samples": self.samples,
            "loader": packed,
        }
        return tensors, about

    def restore(self, tensors: Groups, about: dict[str, Any]) -> None:
        """Continue from what ``capture`` gave. What does not fit this run is refused before anything is changed."""
        try:
            self._check(tensors, about)
        except (AnytimeError, LookupError, TypeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise AnytimeError(
                f"the checkpoint is damaged or of another run: {reason}. Put the right one back, or start again in "
                "another output folder"
            ) from error
        self.net.load_state_dict(tensors["net"])
        self.scheme.load_state_dict(tensors.get("scheme", {}))
        self._restore_optimizer(tensors.get("optimizer", {}))
        self.scaler.load_state_dict(about["scaler"])
        self.average.restore(tensors.get("average", {}))
        self.losses.copy_(tensors["sums"]["losses"])
        self.errors.copy_(tensors["sums"]["wrong"])
        self.epoch, self.position, self.seconds = about["epoch"], about["position"], float(about["seconds"])
        self.samples = float(about["samples"])
        if about.get("loader") is not None:
            self.source.restore(unpack_state(about.get("loader"), tensors.get("loader", {})))

    def _check(self, tensors: Groups, about: dict[str, Any]) -> None:
        if about["run"] != self.run:
            raise AnytimeError("it was written by a run of other facts than run.json has")
        check_integer("epoch", about["epoch"], 0, self.epochs)
        steps = inf if self.source.steps is None else self.source.steps
        check_integer("position", about["position"], 0, 0 if about["epoch"] == self.epochs else steps)
        check_number("seconds", about["seconds"])
        check_number("samples", about["samples"])
        scaler = self.scaler.state_dict()
        if not isinstance(about["scaler"], dict) or about["scaler"].keys() != scaler.keys():
            raise AnytimeError(f"its gradient scaler has {about['scaler']!r}, not {', '.join(scaler) or 'nothing'}")
        for name, value in about["scaler"].items():
            check_number(f"scaler {name}", value)
        moments = tensors.get("optimizer", {})
        if len(moments) != about["moments"]:
            raise AnytimeError(f"its optimizer has {len(moments)} tensors, not {about['moments']}")
        check_tensors("network", tensors.get("net", {}), self.net.state_dict())
        check_tensors("weight scheme", tensors.get("scheme", {}), self.scheme.state_dict())
        check_tensors("optimizer", moments, self._expected_moments(moments))
        check_tensors("average", tensors.get("average", {}), self.average.capture())
        check_tensors("account of the epoch", tensors.get("sums", {}), {"losses": self.losses, "wrong": self.errors})

    def _expected_moments(self, moments: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All that the optimizer keeps for each parameter that has anything in ``moments``."""
        kinds = MOMENTS[type(self.optimizer).__name__]
        trained = {path.partition(":")[2] for path in moments}
        return {
            f"{kind}:{name}": torch.zeros(()) if kind == "step" else parameter
            for name, parameter in self.named.items()
            for kind in kinds
            if name in trained
        }

    def _restore_optimizer(self, moments: Mapping[str, Tensor]) -> None:
        """Through the optimizer's own ``load_state_dict``, which knows what belongs on which device."""
        state: dict[int, dict[str, Tensor]] = {}
        numbers = {name: (number, parameter) for number, (name, parameter) in enumerate(self.named.items())}
        for path, value in moments.items():
            kind, _, name = path.partition(":")
            number, parameter = numbers[name]
            # Laid out in memory as the parameter, or the update would be slower than before.
            kept = value.clone() if kind == "step" else torch.empty_like(parameter).copy_(value)
            state.setdefault(number, {})[kind] = kept
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
