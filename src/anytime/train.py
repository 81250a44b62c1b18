"""The training loop: every exit at once, one objective, stopped and resumed without a trace."""

import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anytime import augment
from anytime.data import Data, Images
from anytime.errors import AnytimeError, NonFiniteLoss
from anytime.evaluate import Curve, evaluate, exit_losses, measure, spread_out, wrong_answers
from anytime.network import AnytimeNetwork
from anytime.progress import progress
from anytime.recipe import RECIPES, Recipe
from anytime.run import RunFolder
from anytime.weights import create_scheme


@dataclass(frozen=True)
class Fit:
    """What training gives back beside the trained network."""

    history: list[dict[str, Any]]
    """A record an epoch, as in the run folder's ``log.jsonl``."""
    curve: Curve | None
    """The anytime curve on the test images, where the data have some."""
    folder: Path | None


def fit(
    net: AnytimeNetwork,
    data: Data,
    scheme: str | Callable[[Tensor], Tensor] = "adaloss",
    *,
    recipe: Recipe | None = None,
    seed: int = 0,
    output: str | Path | None = None,
    resume: bool = False,
    checkpoint_seconds: float = 30,
    show: bool = True,
    about: dict[str, Any] | None = None,
    **changes: Any,
) -> Fit:
    """Train all exits of a network together.

    A seed makes the run repeatable bit for bit on one machine with the same number of threads: the order of
    the images follows from the seed and the epoch alone, and the generators' state is part of a checkpoint.

    Args:
        net: the network, on the device to train on. It is trained in place.
        data: the images.
        scheme: the objective: a weight scheme's name (see ``create_scheme``) or any callable from the losses (a tensor
            of L) to a scalar. One with an attribute ``only`` (``OnlyExit``) has only those exits computed.
        recipe: the numbers. Default: the paper's for CIFAR.
        seed: of the order of the images and of drop-out. The caller's own generators are left alone.
        output: the run folder, for checkpoints, log and model. None: nothing is written.
        resume: go on from the folder's checkpoint if there is one. The result is bit for bit that of an
            uninterrupted run.
        checkpoint_seconds: at least so long between two checkpoints; 0 writes one after every step.
        show: whether to show progress.
        about: more to write down in the run folder's ``run.json``.
        changes: single numbers of the recipe, e.g. ``epochs=10, lr=0.05``.

    Example:
        >>> import anytime
        >>> data = anytime.load_data("digits")
        >>> net = anytime.create_model("resann-1-8", in_channels=1)
        >>> result = anytime.fit(net, data, "adaloss", epochs=2, show=False)
        >>> [round(weight, 1) for weight in result.history[-1]["weights"]][-1]
        1.0
    """
    recipe = replace(recipe or RECIPES["cifar"], **changes)
    if isinstance(scheme, str):
        scheme = create_scheme(scheme, net.exits).to(next(net.parameters()).device)
    training = Training(net, data, scheme, recipe, seed)
    gpus = [training.device] if training.device.type == "cuda" else []
    if output is None:
        with torch.random.fork_rng(gpus):
            training.begin()
            training.run(None, checkpoint_seconds, show)
        return Fit(training.history, training.test(), None)
    with (
        RunFolder(Path(output), training.facts(), resume, about or {}) as folder,
        torch.random.fork_rng(gpus),
    ):
        training.begin()
        if folder.has_checkpoint():
            training.load(*folder.read_checkpoint())
        training.history = folder.keep_epochs(training.epoch)
        training.run(folder, checkpoint_seconds, show)
        curve = training.test()
        folder.finish(net, data, curve)
    return Fit(training.history, curve, folder.path)


@dataclass
class Training:
    """A run in progress: everything that changes while it runs, and so everything a checkpoint holds."""

    net: AnytimeNetwork
    data: Data
    scheme: Callable[[Tensor], Tensor]
    recipe: Recipe
    seed: int
    epoch: int = 0
    position: int = 0
    """Steps done in this epoch."""
    history: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.data.train) == 0:
            raise AnytimeError(f"data {self.data.name!r} has no training images")
        self.device = next(self.net.parameters()).device
        self.only: list[int] | None = getattr(self.scheme, "only", None)
        self.exits = list(range(self.net.exits)) if self.only is None else self.only
        self.steps = -(-len(self.data.train) // self.recipe.batch_size)
        self.named = {f"net.{name}": parameter for name, parameter in self.net.named_parameters()}
        learned = {}
        if isinstance(self.scheme, nn.Module):
            learned = {f"scheme.{name}": parameter for name, parameter in self.scheme.named_parameters()}
        groups = [
            {"params": list(self.named.values()), "weight_decay": self.recipe.weight_decay},
            {"params": list(learned.values()), "weight_decay": 0.0},
        ]
        self.named |= learned
        self.optimizer = torch.optim.SGD(
            [group for group in groups if group["params"]], lr=self.recipe.lr, momentum=self.recipe.momentum
        )
        # Batch norm moves its averages in the forward pass, before the losses are known: kept, to be put back.
        self.buffers = list(self.net.buffers())
        self.buffers_before = [buffer.clone() for buffer in self.buffers]
        self.clear_sums()

    def clear_sums(self) -> None:
        """Begin an epoch's account: summed losses and wrong answers of each exit, and the time it has taken."""
        self.loss_sums = torch.zeros(len(self.exits), dtype=torch.float64, device=self.device)
        self.wrong = torch.zeros(len(self.exits), dtype=torch.int64, device=self.device)
        self.seconds = 0.0

    def begin(self) -> None:
        """Seed the global generators, which drop-out and the like draw from."""
        torch.manual_seed(self.seed)

    def run(self, folder: RunFolder | None, checkpoint_seconds: float, show: bool) -> None:
        """Train from where it stands to the end of the last epoch."""
        images = len(self.data.train)
        done = self.epoch * images + images * self.position // self.steps
        title = (self.net.config or {}).get("model") or type(self.net).__name__
        title = f"{title} {getattr(self.scheme, '_get_name', lambda: 'training')()}"
        saved = time.monotonic()
        with stop_requested() as stopping, progress(title, self.recipe.epochs, images, done, show) as bar:
            while self.epoch < self.recipe.epochs:
                for losses, count in self.epoch_steps():
                    bar.step(self.epoch + 1, count, losses.tolist())
                    if folder and (stopping.is_set() or time.monotonic() - saved >= checkpoint_seconds):
                        folder.write_checkpoint(*self.state())
                        saved = time.monotonic()
                    if stopping.is_set():
                        raise KeyboardInterrupt
                record = self.end_epoch()
                self.history.append(record)
                bar.epoch(record)
                if folder:
                    folder.log(record)
            if folder:
                folder.write_checkpoint(*self.state())

    def epoch_steps(self) -> Iterator[tuple[Tensor, int]]:
        """Do the rest of this epoch's steps; yields the losses and the number of images of each."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.lr_at(self.epoch)
        order = torch.randperm(
            len(self.data.train), generator=torch.Generator().manual_seed(_mix(self.seed, self.epoch, -1))
        )
        self.net.train()
        batches = order.tensor_split(self.steps)  # equal steps: no tiny batch at the end to upset batch norm
        while self.position < self.steps:
            start = time.perf_counter()
            losses = self.step(self.augmented(self.data.train[batches[self.position]]))
            self.position += 1
            self.seconds += time.perf_counter() - start
            yield losses, len(batches[self.position - 1])

    def augmented(self, batch: Images) -> Images:
        """A batch as this epoch and position see it, whatever was drawn before."""
        pixels, draw = batch.pixels, torch.Generator().manual_seed(_mix(self.seed, self.epoch, self.position))
        if self.recipe.pad:
            pixels = augment.pad_crop(pixels, self.recipe.pad, draw)
        if self.recipe.flip:
            pixels = augment.flip(pixels, draw)
        return Images(pixels, batch.labels)

    def step(self, batch: Images) -> Tensor:
        """One update; the losses of the exits that were computed."""
        labels = batch.labels.to(self.device)
        _copy(self.buffers, self.buffers_before)
        logits = torch.stack(self.net(self.data.normalise(batch.pixels.to(self.device)), self.only))
        losses = exit_losses(logits, labels)
        observed = losses.detach()
        if not observed.isfinite().all():
            self.refuse(observed)
        if self.only is not None:  # a scheme sees one loss an exit; those it does not want are zeros without a graph
            losses = losses.new_zeros(self.net.exits).index_copy(0, torch.tensor(self.only, device=self.device), losses)
        self.optimizer.zero_grad()
        self.scheme(losses).backward()
        self.optimizer.step()
        self.loss_sums += observed * len(labels)
        self.wrong += wrong_answers(logits.detach(), labels)
        return observed

    def refuse(self, losses: Tensor) -> None:
        """Stop before a loss that is no number reaches the averages or the network."""
        _copy(self.buffers_before, self.buffers)
        first = int((~losses.isfinite()).nonzero()[0])
        exit = self.exits[first]
        raise NonFiniteLoss(
            f"the loss of exit {exit + 1} of {self.net.exits} (index {exit}) is {losses[first].item()} at step "
            f"{self.epoch * self.steps + self.position + 1} (epoch {self.epoch + 1}, step {self.position + 1} of "
            f"{self.steps}); the step was not taken: network and averages are as before it. "
            f"Try a lower learning rate than {self.recipe.lr_at(self.epoch):g}"
        )

    def end_epoch(self) -> dict[str, Any]:
        """Close the account of an epoch: its line of the log."""
        n = len(self.data.train)
        record: dict[str, Any] = {
            "epoch": self.epoch + 1,
            "lr": self.recipe.lr_at(self.epoch),
            "images_per_second": n / max(self.seconds, 1e-9),
            "seconds": self.seconds,
            "train": {
                "losses": self.by_exit((self.loss_sums / n).tolist()),
                "errors": self.by_exit((self.wrong.double() / n).tolist()),
            },
            "weights": _weights(self.scheme),
        }
        if self.data.validation is not None:
            losses, errors = measure(self.net, self.data, self.data.validation, self.exits)
            record["validation"] = {"losses": self.by_exit(losses), "errors": self.by_exit(errors)}
        self.epoch, self.position = self.epoch + 1, 0
        self.clear_sums()
        return record

    def by_exit(self, values: list[float]) -> list[float | None]:
        """One value an exit; None for those not computed."""
        return spread_out(values, self.exits, self.net.exits)

    def test(self) -> Curve | None:
        """The curve that results are reported on."""
        return evaluate(self.net, self.data, only=self.only) if self.data.test is not None else None

    def facts(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to be continued."""
        return {
            "model": self.net.config or {"model": type(self.net).__name__},
            "data": {"name": self.data.name, "images": len(self.data.train)},
            "scheme": str(self.scheme) if isinstance(self.scheme, nn.Module) else type(self.scheme).__name__,
            "recipe": {**vars(self.recipe), "drops": list(self.recipe.drops)},
            "seed": self.seed,
        }

    def state(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Everything that changes: groups of named tensors, and the rest."""
        momentum = {name: self.optimizer.state[p].get("momentum_buffer") for name, p in self.named.items()}
        tensors: dict[str, dict[str, Tensor]] = {
            "net": self.net.state_dict(),
            "scheme": self.scheme.state_dict() if isinstance(self.scheme, nn.Module) else {},
            "momentum": {name: buffer for name, buffer in momentum.items() if buffer is not None},
            "sums": {"losses": self.loss_sums, "wrong": self.wrong},
            "random": {"cpu": torch.get_rng_state()},
        }
        if self.device.type == "cuda":
            tensors["random"]["cuda"] = torch.cuda.get_rng_state(self.device)
        return tensors, {"epoch": self.epoch, "position": self.position, "seconds": self.seconds}

    def load(self, tensors: dict[str, dict[str, Tensor]], about: dict[str, Any]) -> None:
        """Stand where ``state`` was taken."""
        self.net.load_state_dict(tensors["net"])
        if isinstance(self.scheme, nn.Module):
            self.scheme.load_state_dict(tensors.get("scheme", {}))
        for name, buffer in tensors.get("momentum", {}).items():
            parameter = self.named[name]
            # As the parameter lies in memory, or the update would be slower than before.
            self.optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(buffer)
        self.loss_sums.copy_(tensors["sums"]["losses"])
        self.wrong.copy_(tensors["sums"]["wrong"])
        torch.set_rng_state(tensors["random"]["cpu"])
        if "cuda" in tensors["random"] and self.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random"]["cuda"], self.device)
        self.epoch, self.position, self.seconds = about["epoch"], about["position"], about["seconds"]


def _copy(source: list[Tensor], target: list[Tensor]) -> None:
    for one, other in zip(source, target, strict=True):
        other.copy_(one)


def _mix(*numbers: int) -> int:
    """A generator's seed from a run's seed, epoch and position, unlike that of any others."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()) >> 1


def _weights(scheme: Callable[[Tensor], Tensor]) -> list[float] | None:
    weights = getattr(scheme, "weights", None)
    return weights.tolist() if isinstance(weights, Tensor) else None


@contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """Set by Ctrl-C or a polite kill, so that a run ends between two steps; a second one ends it at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before: dict[int, Any] = {
        number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGINT, signal.SIGTERM)
    }

    def request(number: int, _frame: object) -> None:
        event.set()
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, request)
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
