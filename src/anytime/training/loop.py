"""The training loop: all exits together, one objective."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anytime import distributed
from anytime.data.augmentation import mix
from anytime.data.dataset import Data
from anytime.data.images import Images, Take
from anytime.errors import AnytimeError, check_integer
from anytime.evaluation import Curve, evaluate, exit_losses, measure, spread_out, stacked, wrong_answers
from anytime.meta import on_meta
from anytime.network import AnytimeNetwork
from anytime.progress import progress
from anytime.training.checkpoint import has_checkpoint
from anytime.training.guard import Guard
from anytime.training.interrupt import stop_requested
from anytime.training.recipe import Recipe, create_optimizer
from anytime.training.run_folder import RunFolder
from anytime.training.state import State, named_parameters


@dataclass
class Training:
    """The loop of a run; ``state`` is what changes in it, ``guard`` stops it when a number is not finite."""

    net: AnytimeNetwork
    data: Data
    scheme: Callable[[Tensor], Tensor]
    recipe: Recipe
    seed: int
    accumulate: int = 1
    precision: str = "float32"
    compiled: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.images = len(self.data.train)
        self.device = next(self.net.parameters()).device
        self.only: list[int] | None = getattr(self.scheme, "only", None)
        self.exits = list(range(self.net.exits)) if self.only is None else self.only
        self.where = torch.tensor(self.exits, device=self.device)
        self.steps = -(-self.images // self.recipe.batch_size)
        self.check()
        self.forward: Callable[..., list[Tensor]] = torch.compile(self.net) if self.compiled else self.net
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "float16")
        self.named = named_parameters(self.net, self.scheme)
        own = list(self.net.parameters())
        self.optimizer = create_optimizer(self.recipe, own, list(self.named.values())[len(own) :])
        self.statistics = [buffer for buffer in self.net.buffers() if buffer.is_floating_point()]
        averages = self.scheme.buffers() if isinstance(self.scheme, nn.Module) else ()
        buffers = [*self.net.buffers(), *averages]
        self.guard = Guard(self.named, buffers, self.exits, self.net.exits, self.steps, self.device)
        digest = hashlib.blake2b(json.dumps(self.facts(), sort_keys=True).encode(), digest_size=8).hexdigest()
        sizes = {"epochs": self.recipe.epochs, "steps": self.steps, "exits": len(self.exits)}
        self.state = State(self.net, self.scheme, self.optimizer, self.scaler, run=digest, **sizes)
        self.stop, self.stopping = False, lambda: False

    def check(self) -> None:
        """Refuse what cannot be trained, before anything is written."""
        if self.images == 0:
            raise AnytimeError(f"data {self.data.name!r} has no training images")
        check_integer("accumulate", self.accumulate)
        check_integer("seed", self.seed, 0, 2**63 - 1)
        if self.precision not in ("float32", "bfloat16", "float16"):
            raise AnytimeError(f"precision={self.precision!r} must be float32, bfloat16 or float16")
        processes = distributed.world_size()
        parts = processes * self.accumulate
        if self.images // self.steps < parts:
            raise AnytimeError(
                f"a batch of {self.images // self.steps} images cannot be split into {parts} parts "
                f"({processes} processes, accumulate {self.accumulate}): use a batch size of at least {parts}"
            )
        self.check_answers()

    def check_answers(self) -> None:
        """Refuse a network that cannot take the images or has too few classes for them."""
        image = torch.empty(1, *self.data.shape, device="meta")
        try:
            answers = on_meta(self.net).eval()(image, self.only)
        except AnytimeError:
            raise
        except Exception:
            return  # a network that cannot run without data: the first step will tell
        stacked(answers, self.data)

    def run(self, folder: RunFolder | None, checkpoint_seconds: float, show: bool) -> None:
        """Train from the current state to the end of the last epoch."""
        if self.state.finished:
            return
        if folder and not has_checkpoint(folder.path):
            folder.write_checkpoint(*self.state.capture())  # so that a run with a log always has one
        done = self.state.epoch * self.images + self.images * self.state.position // self.steps
        title = (self.net.config or {}).get("model") or type(self.net).__name__
        title = f"{title} {getattr(self.scheme, '_get_name', lambda: 'training')()}"
        saved = time.monotonic()
        with stop_requested() as requested, progress(title, self.recipe.epochs, self.images, done, show) as bar:
            self.stopping = requested.is_set
            while not self.state.finished:
                for losses, count in self.epoch_steps():
                    bar.step(self.state.epoch + 1, count, losses)
                    due = self.stop or time.monotonic() - saved >= checkpoint_seconds
                    if folder and due and not self.guard.bad:
                        folder.write_checkpoint(*self.state.capture())
                        saved = time.monotonic()
                    if self.stop:
                        raise KeyboardInterrupt
                record = self.end_epoch()
                self.history.append(record)
                bar.epoch(record)
                if folder:
                    folder.log(record)
            if folder:
                folder.write_checkpoint(*self.state.capture())

    def epoch_steps(self) -> Iterator[tuple[Tensor, int]]:
        """Do the rest of this epoch's steps; yields the losses and the number of images of each."""
        takes = self.takes()
        batches = self.data.train.batches((part for step in takes for part in step), self.recipe.augmentation)
        self.net.train()
        for step in takes:
            start = time.perf_counter()
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr(self.state.position)
            losses = self.step([next(batches) for _ in step], step[0].total)
            self.state.position += 1
            self.state.seconds += time.perf_counter() - start
            yield losses, step[0].total

    def lr(self, position: int) -> float:
        """The learning rate of a step of this epoch: the schedule's in the middle of the step."""
        return self.recipe.lr_at(self.state.epoch + (position + 0.5) / self.steps)

    def takes(self) -> list[list[Take]]:
        """What is left of this epoch: for each step, this process's parts of its batch."""
        draw = torch.Generator().manual_seed(mix(self.seed, self.state.epoch, -1))
        order = torch.randperm(self.images, generator=draw)
        result = []
        # Equal steps: no tiny batch at the end to upset batch norm.
        for position, batch in list(enumerate(order.tensor_split(self.steps)))[self.state.position :]:
            places = (
                torch.arange(len(batch))
                .tensor_split(distributed.world_size())[distributed.rank()]
                .tensor_split(self.accumulate)
            )
            seed = mix(self.seed, self.state.epoch, position)
            result.append([Take(batch[p], seed, int(p[0]), len(batch)) for p in places])
        return result

    def step(self, parts: list[Images], total: int) -> Tensor:
        """One update from this process's parts of a batch of ``total`` images; returns the losses of the exits."""
        epoch, position = self.state.epoch, self.state.position
        torch.manual_seed(mix(self.seed, epoch, position, distributed.rank()))  # for dropout
        self.guard.keep()
        self.optimizer.zero_grad()
        sums = torch.zeros(2, len(self.exits), device=self.device)
        objective = torch.zeros((), device=self.device)
        for batch in parts:
            # Parts may differ by an image: each is weighted by its size, so that the average over all is the batch's.
            part, value = self.backward(batch, len(batch) * distributed.world_size() * self.accumulate / total)
            sums += part
            objective += value
        looking = (position + 1) % self.guard.look_every == 0 or position == self.steps - 1
        self.exchange(sums, objective, looking)
        losses = sums[0] / total
        self.guard.watch(epoch * self.steps + position, losses, objective, self.scaler)
        if looking or self.stop:
            self.guard.look(self.lr(position), self.scaler)
        else:
            self.guard.hold(self.optimizer, self.scaler)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.state.add(sums)
        if looking:
            self.state.settle()
        return losses

    def backward(self, batch: Images, share: float) -> tuple[Tensor, Tensor]:
        """Add the gradients of one part of a batch; returns its summed losses and wrong answers, and the objective."""
        labels = batch.labels.to(self.device, non_blocking=True)
        x = self.data.normalize(batch.pixels.to(self.device, non_blocking=True))
        with torch.autocast(self.device.type, getattr(torch, self.precision), enabled=self.precision != "float32"):
            logits = stacked(self.forward(x, self.only), self.data).float()
        losses = exit_losses(logits, labels)
        # If one loss is not finite all become NaN, so that no average of the scheme moves.
        weighed = torch.where(losses.isfinite().all(), losses * share, torch.nan)
        if self.only is not None:  # a scheme gets one loss per exit; those left out are zeros without a graph
            weighed = losses.new_zeros(self.net.exits).index_copy(0, self.where, weighed)
        objective = self.scheme(weighed)
        if not isinstance(objective, Tensor) or objective.ndim or not objective.requires_grad:
            raise AnytimeError(
                "the scheme must return a scalar tensor made from the losses, e.g. lambda losses: losses.sum()"
            )
        objective = objective / self.accumulate
        self.scaler.scale(objective).backward()
        sums = torch.stack([losses.detach() * len(labels), wrong_answers(logits.detach(), labels)])
        return sums, objective.detach()

    def exchange(self, sums: Tensor, objective: Tensor, looking: bool) -> None:
        """Average gradients and batch-norm statistics over all processes, add up sums; stop together if one has to.

        All of it is one message. With several processes a request to stop is read only when the losses are looked at
        anyway, since to read it is to wait for the device.
        """
        if distributed.world_size() == 1:
            self.stop = self.stopping()
            return
        requests = torch.tensor([float(self.stopping())], device=self.device)
        distributed.average([*self.guard.gradients(), *self.statistics, sums, objective, requests])
        sums *= distributed.world_size()
        self.stop = looking and requests.item() > 0

    def end_epoch(self) -> dict[str, Any]:
        """Close the epoch; returns its line of the log."""
        state = self.state
        state.settle()
        record: dict[str, Any] = {
            "epoch": state.epoch + 1,
            "lr": self.lr(self.steps - 1),
            "images_per_second": self.images / max(state.seconds, 1e-9),
            "seconds": state.seconds,
            "train": {
                "losses": self.by_exit((state.losses / self.images).tolist()),
                "errors": self.by_exit((state.wrong.double() / self.images).tolist()),
            },
            "weights": _weights(self.scheme),
        }
        if self.data.validation is not None:
            losses, errors = measure(self.net, self.data, self.data.validation, self.exits, shared=True)
            record["validation"] = {"losses": self.by_exit(losses), "errors": self.by_exit(errors)}
        state.epoch, state.position = state.epoch + 1, 0
        state.clear()
        return record

    def by_exit(self, values: list[float]) -> list[float | None]:
        """One value per exit; None for those not computed."""
        return spread_out(values, self.exits, self.net.exits)

    def test(self) -> Curve | None:
        """The curve on the test images, if there are any."""
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


def _weights(scheme: Callable[[Tensor], Tensor]) -> list[float] | None:
    weights = getattr(scheme, "weights", None)
    return weights.tolist() if isinstance(weights, Tensor) else None
