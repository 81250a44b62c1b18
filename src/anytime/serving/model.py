"""The model of an engine: a network, the accuracy of its exits, and its early-exit policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from anytime.errors import AnytimeError
from anytime.export.backend import load_backend
from anytime.files import read_json
from anytime.inference.batch_times import BatchTimes, read_batch_times
from anytime.inference.policy import FILE as POLICY
from anytime.inference.policy import Policy
from anytime.inputs import as_input, like_weights
from anytime.network import Network, tensors_of
from anytime.serving.ways import rising_accuracy


class Source(NamedTuple):
    """A network's folder and backend: engine processes load it themselves."""

    folder: Path
    backend: str

    def load(self) -> Any:
        """The network."""
        net = load_backend(self.folder, self.backend)
        # Processors are slow with the 16 bits that some networks have.
        return net if net.exported else net.float()

    @property
    def may_be_written(self) -> bool:
        """Whether its times may be saved beside it: not in the package's own folder."""
        return Path(__file__).resolve().parent not in self.folder.resolve().parents

    @property
    def times_folder(self) -> Path:
        """The folder of its times: each backend has its own."""
        return self.folder / "onnx" if self.backend == "onnx" and (self.folder / "onnx").is_dir() else self.folder


@dataclass(frozen=True)
class Model:
    """A network with its accuracy, policy, times and example; ``Model.of`` loads what is saved beside it."""

    net: Any
    policy: Policy | None
    accuracy: list[float]
    known_times: list[BatchTimes]
    example: Any
    source: Source | None
    may_measure: bool
    """Whether times that turn out to be outdated are measured anew; those that the caller gave are not."""

    @staticmethod
    def of(
        net: Network | str | Path,
        policy: Policy | bool | None,
        accuracy: Sequence[float] | None,
        profile: BatchTimes | None,
        example: Any,
        backend: str = "auto",
    ) -> "Model":
        """The model of a network or a folder; see ``Engine``."""
        folder = Path(net) if isinstance(net, str | Path) else None
        source = Source(folder, backend) if folder is not None else None
        network: Any = source.load() if source is not None else net
        check_network(network)
        exits = sum(exit is not None for exit in network.stage_exits)
        if policy is None or policy is True:
            policy = Policy.load(folder) if folder is not None and (folder / POLICY).is_file() else None
        if isinstance(policy, Policy) and len(policy.temperatures) != exits:
            raise AnytimeError(f"the policy is for a network of {len(policy.temperatures)} exits, not of {exits}")
        if accuracy is None:
            accuracy = saved_accuracy(folder, exits) or [(exit + 1) / exits for exit in range(exits)]
        rising_accuracy(accuracy, exits)
        times = [profile] if profile is not None else read_batch_times(source.times_folder) if source else []
        if example is None:
            example = like_weights(network, torch.zeros(1, *network.input_shape()))
        else:
            example = as_input(network, example)
        return Model(network, policy or None, list(accuracy), times, example, source, profile is None)

    def check_input(self, x: Any, largest: int) -> int:
        """The number of samples of an input; raises if there are none or too many, or if it is unlike the example."""
        if (given := _kind(x)) != (expected := _kind(self.example)):
            raise AnytimeError(
                f"the input is of the kind {given}, the engine's example of {expected}: dtype and number of dimensions "
                "must agree; x[None] makes a batch of a single sample"
            )
        sizes = {tensor.shape[0] if tensor.ndim else 0 for tensor in tensors_of(x)}
        if len(sizes) != 1 or not 1 <= min(sizes) <= largest:
            raise AnytimeError(
                f"the input has {sorted(sizes)} samples along the first dimension of its tensors; expected a batch of "
                f"1 to {largest}: submit larger ones in parts"
            )
        return sizes.pop()


def _kind(x: Any) -> Any:
    if isinstance(x, Tensor):  # the usual case
        return x.dtype, x.ndim
    return str(tree_map(lambda leaf: (leaf.dtype, leaf.ndim) if isinstance(leaf, Tensor) else leaf, x))


def check_network(net: Any) -> None:
    """Raise if a network cannot be served."""
    if not isinstance(net, Network):
        raise AnytimeError(f"a {type(net).__name__} is not an anytime network: see anytime.create_model and convert")
    if net.paused_because:
        raise AnytimeError(
            f"this network was converted without a graph ({net.paused_because}), so requests cannot share its batches: "
            "serve it with anytime.predict"
        )
    if net.training:
        raise AnytimeError("the network is in training mode: its predictions depend on the batch; call net.eval()")


def saved_accuracy(folder: Path | None, exits: int) -> list[float] | None:
    """The accuracy of each exit in the folder's evaluation; None if it is not there for all of them."""
    if folder is None or not (folder / "evaluation.json").is_file():
        return None
    errors = read_json(folder / "evaluation.json").get("errors")
    if not isinstance(errors, list) or len(errors) != exits:
        return None
    if not all(isinstance(error, int | float) and 0 <= error <= 1 for error in errors):  # of another kind, or NaN
        return None
    return [1 - error for error in errors]
