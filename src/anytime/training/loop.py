"""The training loop: every exit at once, one objective, stopped and resumed without a trace."""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anytime import distributed
from anytime.cost import on_meta
from anytime.data.augmentation import mix
from anytime.data.dataset import Data
from anytime.data.images import Images, Take
from anytime.errors import AnytimeError, NonFiniteLossError
from anytime.evaluation import Curve, evaluate, exit_losses, measure, spread_out, wrong_answers
from anytime.network import AnytimeNetwork
from anytime.progress import progress
from anytime.training.checkpoint import has_checkpoint, load_checkpoint
from anytime.training.interrupt import stop_requested
from anytime.training.recipe import RECIPES, Recipe
from anytime.training.run_folder import RunFolder
from anytime.weights import create_scheme


@dataclass(frozen=True)
class FitResult:
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
    accumulate: int = 1,
    precision: str = "float32",
    compiled: bool = False,
    show: bool = True,
    about: dict[str, Any] | None = None,
    **changes: Any,
) -> FitResult:
    """Train all exits of a network together.

    A seed makes the run repeatable bit for bit on one machine with the same number of threads: the order of the images,
    their augmentation and drop-out follow from seed, epoch and position alone.

    Under ``torch.distributed`` every process calls this with the same arguments and trains on its part of each batch;
    gradients, batch-norm statistics and losses are averaged over all, and the first process alone writes.

    Args:
        net: the network, on the device to train on. It is trained in place.
        data: the images.
        scheme: the objective: a weight scheme's name (see ``create_scheme``) or any callable from the losses (a tensor
            of L) to a scalar. One with an attribute ``only`` (``OnlyExit``) has only those exits computed.
        recipe: the numbers. Default: the paper's for CIFAR.
        seed: of the order of the images, their augmentation and drop-out. The caller's own generators are left alone.
        output: the run folder, for checkpoints, log and model. None: nothing is written.
        resume: go on from the folder's checkpoint if there is one. The result is bit for bit that of an
            uninterrupted run.
        checkpoint_seconds: at least so long between two checkpoints; 0 writes one after every step.
        accumulate: cut each step's batch into so many parts, one after the other, for less memory. Each part is a call
            of the scheme.
        precision: ``float32``, or ``bfloat16`` or ``float16`` where the device gains from it.
        compiled: let ``torch.compile`` fuse the network: slow to start, faster after.
        show: whether to show progress.
        about: more to write down in the run folder's ``run.json``.
        changes: single numbers of the recipe, e.g. ``epochs=10, lr=0.05``.

    Example:
        >>> import anytime
        >>> data = anytime.load_data("digits")
        >>> net = anytime.create_model("resann-1-8", in_channels=1)
        >>> result = anytime.fit(net, data, "adaloss", epochs=2, pad=1, flip=False, show=False)
        >>> [round(weight, 1) for weight in result.history[-1]["weights"]][-1]
        1.0
    """
    recipe = replace(recipe or RECIPES["cifar"], **changes)
    device = next(net.parameters()).device
    if isinstance(scheme, str):
        scheme = create_scheme(scheme, net.exits).to(device)
    training = Training(net, data.to(device), scheme, recipe, seed, accumulate, precision, compiled)
    first = distributed.mine() == 0
    path = None if output is None else Path(output)
    place = RunFolder(path, training.facts(), resume, about or {}) if path and first else nullcontext()
    with place as folder, torch.random.fork_rng([device] if device.type == "cuda" else []):
        distributed.wait()  # the first process has looked at the folder
        if path and has_checkpoint(path):
            training.load(*load_checkpoint(path))
        if folder:
            training.history = folder.keep_epochs(training.epoch)
        training.run(folder, checkpoint_seconds, show and first)
        curve = training.test()
        if folder:
            folder.finish(net, data, curve)
        distributed.wait()
    return FitResult(training.history, curve, path)


@dataclass
class Training:
    """A run in progress: everything that changes while it runs, and so everything a checkpoint holds."""

    net: AnytimeNetwork
    data: Data
    scheme: Callable[[Tensor], Tensor]
    recipe: Recipe
    seed: int
    accumulate: int = 1
    precision: str = "float32"
    compiled: bool = False
    epoch: int = 0
    position: int = 0
    """Steps done in this epoch."""
    history: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.images = len(self.data.train)
        self.device = next(self.net.parameters()).device
        self.only: list[int] | None = getattr(self.scheme, "only", None)
        self.exits = list(range(self.net.exits)) if self.only is None else self.only
        self.steps = -(-self.images // self.recipe.batch_size)
        self.check()
        self.forward: Callable[..., list[Tensor]] = torch.compile(self.net) if self.compiled else self.net
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "float16")
        learned = self.scheme.named_parameters() if isinstance(self.scheme, nn.Module) else ()
        weights = dict(self.net.named_parameters(prefix="net"))
        balance = {f"scheme.{name}": parameter for name, parameter in learned}
        self.named = weights | balance
        groups = [
            {"params": list(weights.values()), "weight_decay": self.recipe.weight_decay},
            {"params": list(balance.values()), "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        if self.recipe.optimizer == "adamw":
            betas = (self.recipe.momentum, 0.999)
            self.optimizer = torch.optim.AdamW(groups, lr=self.recipe.lr, betas=betas, fused=True)
        else:
            self.optimizer = torch.optim.SGD(groups, lr=self.recipe.lr, momentum=self.recipe.momentum, fused=True)
        # Batch norm moves its averages in the forward pass, before the losses are known, and a scheme those of the
        # losses with each part of a batch: kept, to be put back.
        self.statistics = [buffer for buffer in self.net.buffers() if buffer.is_floating_point()]
        averages = self.scheme.buffers() if isinstance(self.scheme, nn.Module) else ()
        self.buffers = [*self.net.buffers(), *averages]
        self.buffers_before = [buffer.clone() for buffer in self.buffers]
        self.bad = torch.zeros((), dtype=torch.bool, device=self.device)
        self.senseless = torch.zeros((), dtype=torch.bool, device=self.device)
        self.bad_step = torch.zeros((), dtype=torch.int64, device=self.device)
        self.bad_losses = torch.zeros(len(self.exits), device=self.device)
        self.look_every = 1 if self.device.type == "cpu" else 50
        self.stop, self.stopping = False, lambda: False
        self.clear_sums()

    def check(self) -> None:
        """Refuse what cannot be trained."""
        if self.images == 0:
            raise AnytimeError(f"data {self.data.name!r} has no training images")
        if self.accumulate < 1:
            raise AnytimeError(f"accumulate={self.accumulate}: it is a whole number from 1")
        if not 0 <= self.seed < 2**63:
            raise AnytimeError(f"seed {self.seed}: it is a whole number from 0 and below 2^63")
        self.check_shape()
        if self.precision not in ("float32", "bfloat16", "float16"):
            raise AnytimeError(f"precision={self.precision!r}: it is float32, bfloat16 or float16")
        parts = distributed.count() * self.accumulate
        if self.images // self.steps < parts:
            raise AnytimeError(
                f"a batch of {self.images // self.steps} images cannot be cut into {parts} parts "
                f"({distributed.count()} processes, accumulate {self.accumulate}): use a batch size of at least {parts}"
            )

    def check_shape(self) -> None:
        """Refuse images that the network cannot take, before anything is written."""
        try:
            on_meta(self.net).eval()(torch.empty(1, *self.data.shape, device="meta"))
        except AnytimeError:
            raise
        except Exception:
            return  # a network that cannot run without data: the first step will tell

    def clear_sums(self) -> None:
        """Begin an epoch's account: summed losses and wrong answers of each exit, and the time it has taken."""
        self.loss_sums = torch.zeros(len(self.exits), dtype=torch.float64, device=self.device)
        self.wrong = torch.zeros(len(self.exits), dtype=torch.int64, device=self.device)
        self.seconds = 0.0

    def run(self, folder: RunFolder | None, checkpoint_seconds: float, show: bool) -> None:
        """Train from where it stands to the end of the last epoch."""
        done = self.epoch * self.images + self.images * self.position // self.steps
        title = (self.net.config or {}).get("model") or type(self.net).__name__
        title = f"{title} {getattr(self.scheme, '_get_name', lambda: 'training')()}"
        saved = time.monotonic()
        with stop_requested() as requested, progress(title, self.recipe.epochs, self.images, done, show) as bar:
            self.stopping = requested.is_set
            while self.epoch < self.recipe.epochs:
                for losses, count in self.epoch_steps():
                    bar.step(self.epoch + 1, count, losses)
                    if folder and (self.stop or time.monotonic() - saved >= checkpoint_seconds):
                        folder.write_checkpoint(*self.state())
                        saved = time.monotonic()
                    if self.stop:
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
        takes = self.takes()
        batches = self.data.train.batches((part for step in takes for part in step), self.recipe.augmentation)
        self.net.train()
        for step in takes:
            start = time.perf_counter()
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr
            losses = self.step([next(batches) for _ in step], step[0].total)
            self.position += 1
            self.seconds += time.perf_counter() - start
            yield losses, step[0].total

    @property
    def lr(self) -> float:
        """The learning rate of the next step: the schedule's in the middle of it."""
        return self.recipe.lr_at(self.epoch + (self.position + 0.5) / self.steps)

    def takes(self) -> list[list[Take]]:
        """What is left of this epoch: for each step, this process's parts of its batch."""
        draw = torch.Generator().manual_seed(mix(self.seed, self.epoch, -1))
        order = torch.randperm(self.images, generator=draw)
        result = []
        # Equal steps: no tiny batch at the end to upset batch norm.
        for position, batch in list(enumerate(order.tensor_split(self.steps)))[self.position :]:
            places = (
                torch.arange(len(batch))
                .tensor_split(distributed.count())[distributed.mine()]
                .tensor_split(self.accumulate)
            )
            seed = mix(self.seed, self.epoch, position)
            result.append([Take(batch[p], seed, int(p[0]), len(batch)) for p in places])
        return result

    def step(self, parts: list[Images], total: int) -> Tensor:
        """One update from this process's parts of a batch of ``total``; the losses of the exits computed."""
        torch.manual_seed(mix(self.seed, self.epoch, self.position, distributed.mine()))  # what drop-out draws from
        for kept, buffer in zip(self.buffers_before, self.buffers, strict=True):
            kept.copy_(torch.where(self.bad, kept, buffer))
        self.optimizer.zero_grad()
        sums = torch.zeros(2, len(self.exits), device=self.device)
        for batch in parts:
            # Parts may differ by an image: each counts as many as it has, so that the average over all is the batch's.
            sums += self.backward(batch, len(batch) * distributed.count() * self.accumulate / total)
        self.exchange(sums)
        losses = sums[0] / total
        self.look_out(losses)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.loss_sums += sums[0]
        self.wrong += sums[1].long()
        return losses

    def backward(self, batch: Images, share: float) -> Tensor:
        """Add the gradients of one part of a batch; the sums of its losses and the numbers of its wrong answers."""
        labels = batch.labels.to(self.device, non_blocking=True)
        x = self.data.normalize(batch.pixels.to(self.device, non_blocking=True))
        with torch.autocast(self.device.type, getattr(torch, self.precision), enabled=self.precision != "float32"):
            logits = torch.stack(self.forward(x, self.only)).float()
        losses = exit_losses(logits, labels)
        # One loss that is no number makes all so: then no average moves.
        weighed = torch.where(losses.isfinite().all(), losses * share, torch.nan)
        if self.only is not None:  # a scheme sees one loss an exit; those it does not want are zeros without a graph
            where = torch.tensor(self.only, device=self.device)
            weighed = losses.new_zeros(self.net.exits).index_copy(0, where, weighed)
        objective = self.scheme(weighed) / self.accumulate
        self.senseless = self.senseless | ~objective.isfinite()
        self.scaler.scale(objective).backward()
        return torch.stack([losses.detach() * len(labels), wrong_answers(logits.detach(), labels)])

    def exchange(self, sums: Tensor) -> None:
        """Average gradients and batch-norm statistics over all processes, add up sums; stop together if one will."""
        self.stop = self.stopping()
        if distributed.count() == 1:
            return
        wishes = torch.tensor([float(self.stop)], device=self.device)
        gradients = [p.grad for p in self.named.values() if p.grad is not None]
        distributed.average([*gradients, *self.statistics, sums, wishes])
        sums *= distributed.count()
        self.stop = wishes.item() > 0

    def look_out(self, losses: Tensor) -> None:
        """Stop before a loss that is no number reaches the network.

        A processor's losses are looked at before the update. To ask an accelerator is to wait for it: there the
        optimiser is told on the device to change nothing any more, and the question is put now and then.
        """
        new = (~losses.isfinite().all() | self.senseless) & ~self.bad
        self.bad_losses = torch.where(new, losses, self.bad_losses)
        self.bad_step = torch.where(new, self.epoch * self.steps + self.position, self.bad_step)
        self.bad = self.bad | new
        if (self.position + 1) % self.look_every == 0 or self.position == self.steps - 1:
            if self.bad:
                self.refuse()
        else:
            self.optimizer.found_inf = self.bad.float()  # type: ignore[attr-defined]

    def refuse(self) -> None:
        """Put batch norm's statistics back and say what happened."""
        for kept, buffer in zip(self.buffers_before, self.buffers, strict=True):
            buffer.copy_(kept)
        wrong = (~self.bad_losses.isfinite()).nonzero()
        if len(wrong) == 0:
            raise NonFiniteLossError(
                f"every loss is a number at step {int(self.bad_step) + 1}, but {self.scheme} makes none of them; "
                "the step was not taken"
            )
        first = int(wrong[0])
        exit, step = self.exits[first], int(self.bad_step)
        raise NonFiniteLossError(
            f"the loss of exit {exit + 1} of {self.net.exits} (index {exit}) is {self.bad_losses[first].item()} "
            f"at step {step + 1} (epoch {step // self.steps + 1}, step {step % self.steps + 1} of {self.steps}); "
            "the step was not taken: network and averages are as before it. "
            f"Try a lower learning rate than {self.lr:g}"
        )

    def end_epoch(self) -> dict[str, Any]:
        """Close the account of an epoch: its line of the log."""
        record: dict[str, Any] = {
            "epoch": self.epoch + 1,
            "lr": self.recipe.lr_at(self.epoch),
            "images_per_second": self.images / max(self.seconds, 1e-9),
            "seconds": self.seconds,
            "train": {
                "losses": self.by_exit((self.loss_sums / self.images).tolist()),
                "errors": self.by_exit((self.wrong.double() / self.images).tolist()),
            },
            "weights": _weights(self.scheme),
        }
        if self.data.validation is not None:
            losses, errors = measure(self.net, self.data, self.data.validation, self.exits, shared=True)
            record["validation"] = {"losses": self.by_exit(losses), "errors": self.by_exit(errors)}
        self.epoch, self.position = self.epoch + 1, 0
        self.clear_sums()
        return record

    def by_exit(self, values: list[float]) -> list[float | None]:
        """One value an exit; None for those not computed."""
        return spread_out(values, self.exits, self.net.exits)

    def test(self) -> Curve | None:
        """The curve that results are reported on."""
        return evaluate(self.net, self.data, only=self.only, shared=True) if self.data.test is not None else None

    def facts(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to be continued."""
        return {
            "model": self.net.config or {"model": type(self.net).__name__},
            "data": {"name": self.data.name, "images": self.images, "digest": self.data.digest()},
            "scheme": str(self.scheme) if isinstance(self.scheme, nn.Module) else type(self.scheme).__name__,
            "recipe": {**asdict(self.recipe), "drops": list(self.recipe.drops)},
            "seed": self.seed,
            "accumulate": self.accumulate,
            "precision": self.precision,
            "compiled": self.compiled,
        }

    def state(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Everything that changes: groups of named tensors, and the rest.

        Random numbers follow from seed, epoch and position, so no generator has a state to keep.
        """
        moments = {
            f"{moment}:{name}": value
            for name, p in self.named.items()
            for moment, value in self.optimizer.state[p].items()
            if value is not None
        }
        tensors: dict[str, dict[str, Tensor]] = {
            "net": self.net.state_dict(),
            "scheme": self.scheme.state_dict() if isinstance(self.scheme, nn.Module) else {},
            "optimizer": moments,
            "sums": {"losses": self.loss_sums, "wrong": self.wrong},
        }
        scaler = self.scaler.state_dict()
        return tensors, {"epoch": self.epoch, "position": self.position, "seconds": self.seconds, "scaler": scaler}

    def load(self, tensors: dict[str, dict[str, Tensor]], about: dict[str, Any]) -> None:
        """Stand where ``state`` was taken."""
        try:
            self._load(tensors, about)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise AnytimeError(f"the checkpoint is damaged or of another run: {reason}") from error

    def _load(self, tensors: dict[str, dict[str, Tensor]], about: dict[str, Any]) -> None:
        self.net.load_state_dict(tensors["net"])
        if isinstance(self.scheme, nn.Module):
            self.scheme.load_state_dict(tensors.get("scheme", {}))
        for path, value in tensors.get("optimizer", {}).items():
            moment, _, name = path.partition(":")
            parameter = self.named[name]
            if value.shape == parameter.shape:
                # As the parameter lies in memory, or the update would be slower than before.
                value = torch.empty_like(parameter).copy_(value)
            self.optimizer.state[parameter][moment] = value
        self.loss_sums.copy_(tensors["sums"]["losses"])
        self.wrong.copy_(tensors["sums"]["wrong"])
        self.scaler.load_state_dict(about["scaler"])
        self.epoch, self.position, self.seconds = about["epoch"], about["position"], about["seconds"]


def _weights(scheme: Callable[[Tensor], Tensor]) -> list[float] | None:
    weights = getattr(scheme, "weights", None)
    return weights.tolist() if isinstance(weights, Tensor) else None
