"""The training loop: all exits together, one objective."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anytime import distributed
from anytime.batches import batches_of, runs_out
from anytime.data.augmentation import mix
from anytime.data.dataset import Data
from anytime.errors import AnytimeError, check_integer
from anytime.evaluation import Curve, check_classes, evaluate, image_batches, measure, spread_out
from anytime.inputs import explained, like_weights
from anytime.losses import Function, cross_entropy
from anytime.metrics import SHARES
from anytime.network import Network, eval_mode, name_of
from anytime.progress import Progress, progress
from anytime.training.averaging import WeightAverage
from anytime.training.checkpoint import has_checkpoint
from anytime.training.epochs import BatchStep, Epochs, ImageEpochs, LoaderEpochs
from anytime.training.finite import FiniteGuard
from anytime.training.interrupt import stop_requested
from anytime.training.kept import KeptEpochs, kept_epochs
from anytime.training.objective import Objective
from anytime.training.recipe import Recipe, create_optimizer
from anytime.training.run_folder import RunFolder
from anytime.training.slower import SlowerSteps
from anytime.training.state import RunState, named_parameters
from anytime.training.statistics import keeping_up
from anytime.weights.annealed import set_steps
from anytime.weights.first_order import watchers
from anytime.weights.scheme import WeightScheme


@dataclass(kw_only=True)
class Training:
    """The loop of a run; ``state`` is what changes in it, ``guard`` stops it when a number is not finite."""

    net: Network
    data: Any
    scheme: Callable[[Tensor], Tensor]
    recipe: Recipe
    seed: int
    accumulate: int = 1
    precision: str = "float32"
    compiled: bool = False
    features_gb: float = 0.0
    loss: Function = cross_entropy
    metric: Function | None = None
    validation: Any = None
    on_step: Callable[[dict[str, Any]], object] | None = None
    on_epoch: Callable[[dict[str, Any]], object] | None = None
    history: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device = next(self.net.parameters()).device
        self.check()
        self.source = self.epochs()
        # Before the facts are noted, which show the scheme. Kept features are counted when they are computed.
        self.tell_scheme(0 if isinstance(self.source, KeptEpochs) else self.source.steps)
        options = (self.recipe.label_smoothing, self.device)
        self.objective = Objective(self.net, self.scheme, self.loss, self.metric, *options)
        self.only = self.objective.only
        self.exits = list(range(self.net.exits)) if self.only is None else self.only
        if isinstance(self.data, Data):
            self.check_answers(self.data)
        kept = isinstance(self.source, KeptEpochs)
        forward: Any = self.net.answers if kept else self.net
        self.forward: Callable[..., list[Tensor]] = torch.compile(forward) if self.compiled else forward
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "float16")
        self.named = named_parameters(self.net, self.scheme)
        own = list(self.net.parameters())
        self.optimizer = create_optimizer(self.recipe, self.net, list(self.named.values())[len(own) :])
        self.average = WeightAverage(self.net, self.recipe.ema)
        self.statistics = [buffer for buffer in self.net.buffers() if buffer.is_floating_point()]
        averages = self.scheme.buffers() if isinstance(self.scheme, nn.Module) else ()
        buffers = [*(self.net.get_submodule("heads") if kept else self.net).buffers(), *averages]
        self.guard = FiniteGuard(self.named, buffers, self.exits, self.net.exits, self.source.steps, self.device)
        digest = hashlib.blake2b(json.dumps(self.facts(), sort_keys=True).encode(), digest_size=8).hexdigest()
        sizes = {"epochs": self.recipe.epochs, "exits": len(self.exits)}
        parts = (self.net, self.scheme, self.optimizer, self.scaler, self.average, self.source)
        self.state = RunState(*parts, run=digest, **sizes)
        self.pace = SlowerSteps(torch.get_num_threads())
        self.stop, self.stopping = False, lambda: False

    def check(self) -> None:
        """Refuse what cannot be trained, before anything is written."""
        check_integer("accumulate", self.accumulate)
        check_integer("seed", self.seed, 0, 2**63 - 1)
        if self.precision not in ("float32", "bfloat16", "float16"):
            raise AnytimeError(f"precision={self.precision!r} must be float32, bfloat16 or float16")
        if runs_out(self.data) and self.recipe.epochs > 1:
            raise AnytimeError(
                f"these batches can be iterated over only once, and there are {self.recipe.epochs} epochs: pass a "
                "DataLoader or a list, list(batches), or epochs=1"
            )

    def epochs(self) -> Epochs:
        """Where the batches come from."""
        common = (self.recipe, self.seed, self.accumulate, self.device)
        source = (
            ImageEpochs(self.data, *common)
            if isinstance(self.data, Data)
            else LoaderEpochs(self.net, self.data, *common[1:])
        )
        gigabytes = 0 if watchers(self.scheme) else self.features_gb
        return kept_epochs(self.net, self.data, source, *common, gigabytes) or source

    def prepare(self, show: bool) -> None:
        """Compute what an epoch needs; then it is known how many steps it has."""
        if isinstance(self.source, KeptEpochs):
            self.source.prepare(show)
            self.guard.steps = self.source.steps
            self.tell_scheme(self.source.steps)

    def tell_scheme(self, steps: int | None) -> None:
        """Tell the scheme how many calls the training has, if it must know."""
        if isinstance(self.scheme, nn.Module):
            set_steps(self.scheme, steps and steps * self.recipe.epochs * self.accumulate)

    def check_answers(self, data: Data) -> None:
        """Refuse a network that cannot take the images or has too few classes for them."""
        if self.loss is not cross_entropy:
            return
        # A real image of zeros: on the meta device, where batch norm is taken apart, it takes ten times as long.
        image = torch.zeros(1, *data.shape, device=self.device)
        try:
            with eval_mode(self.net), torch.no_grad():
                answers = self.net(image, self.only)
        except AnytimeError:
            raise
        except Exception:
            return  # the first step will tell
        check_classes(answers, data)

    def run(self, folder: RunFolder | None, checkpoint_seconds: float, show: bool) -> None:
        """Train from the current state to the end of the last epoch."""
        if self.state.finished:
            return
        if folder and not has_checkpoint(folder.path):
            folder.write_checkpoint(*self.state.capture())  # so that a run with a log always has one
        expected = self.source.expected
        steps = self.source.steps or 1
        done = self.state.epoch * (expected or 0) + (expected or 0) * self.state.position // steps
        name = name_of(self.net.config) or type(self.net).__name__
        title = f"{name} {getattr(self.scheme, '_get_name', lambda: 'training')()}"
        saved = time.monotonic()
        self.net.train()
        total = self.source.steps and self.source.steps * self.recipe.epochs
        statistics = keeping_up(self.net, total, warn=distributed.rank() == 0)
        with stop_requested() as requested, statistics, self.progress(title, done, show) as bar:
            self.stopping = requested.is_set
            while not self.state.finished:
                for losses, count in self.epoch_steps():
                    bar.step(self.state.epoch + 1, count, losses)
                    due = self.stop or time.monotonic() - saved >= checkpoint_seconds
                    if folder and due and self.source.resumes and not self.guard.bad:
                        folder.write_checkpoint(*self.state.capture())
                        saved = time.monotonic()
                    if self.stop:
                        raise KeyboardInterrupt
                record = self.end_epoch()
                self.history.append(record)
                bar.epoch(record)
                if folder:
                    folder.log(record)
                    if not self.source.resumes:
                        folder.write_checkpoint(*self.state.capture())
                if self.on_epoch is not None:
                    self.on_epoch(record)
            if folder:
                folder.write_checkpoint(*self.state.capture())

    def progress(self, title: str, done: int, show: bool) -> Progress:
        """What shows how far the training is."""
        percent = getattr(self.objective.metric, "__name__", "") in SHARES
        return progress(title, self.recipe.epochs, self.source.expected, done, show, self.source.unit, percent)

    def epoch_steps(self) -> Iterator[tuple[Tensor, int]]:
        """Do the rest of this epoch's steps; yields the losses and the number of samples of each."""
        self.net.train()
        start = time.perf_counter()
        for step in self.source.from_step(self.state.epoch, self.state.position):
            lr = self.lr(self.state.position)
            for group in self.optimizer.param_groups:
                group["lr"] = lr * group["share"]
            begun = time.perf_counter()
            losses = self.step(step)
            if self.device.type == "cpu" and distributed.rank() == 0:
                self.pace.step(time.perf_counter() - begun, step.total)
            self.state.position += 1
            if self.on_step is not None:
                self.on_step({"epoch": self.state.epoch + 1, "step": self.state.position, "lr": lr, "losses": losses})
            self.state.seconds += time.perf_counter() - start
            yield losses, step.total
            start = time.perf_counter()

    def lr(self, position: int) -> float:
        """The learning rate of a step of this epoch: the schedule's in the middle of the step.

        Where the number of steps is not known, all have that of the middle of the epoch.
        """
        steps = self.source.steps
        done = 0.5 if steps is None else min((position + 0.5) / steps, 1.0)
        return self.recipe.lr_at(self.state.epoch + done)

    def step(self, step: BatchStep) -> Tensor:
        """One update; returns the losses of the exits."""
        epoch, position = self.state.epoch, self.state.position
        torch.manual_seed(mix(self.seed, epoch, position, distributed.rank()))  # for dropout
        self.guard.keep()
        self.optimizer.zero_grad()
        sums = torch.zeros(3, len(self.exits), device=self.device)
        objective = torch.zeros((), device=self.device)
        for part in step.parts:
            # Parts may differ by a sample: each is weighted by its size, so that the average over all is the batch's.
            share = len(part) * distributed.world_size() * len(step.parts) / step.total
            part_sums, value = self.backward(part, share, len(step.parts))
            sums += part_sums
            objective += value
        looking = (position + 1) % self.guard.look_every == 0 or position + 1 == self.source.steps
        self.exchange(sums, objective, looking)
        losses = sums[0] / step.total
        self.guard.watch(epoch, position, losses, objective, self.scaler)
        if looking or self.stop:
            self.guard.look(self.lr(position), self.scaler)
        else:
            self.guard.hold(self.optimizer, self.scaler)
        self.update()
        self.state.add(sums)
        if looking:
            self.state.settle()
        return losses

    def update(self) -> None:
        """Change the weights by the gradients, and the averages by the weights."""
        if self.recipe.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(list(self.named.values()), self.recipe.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.average.update(self.guard.bad)

    def backward(self, part: Any, share: float, parts: int) -> tuple[Tensor, Tensor]:
        """Add the gradients of one of so many parts; returns its summed losses, errors and samples, and objective."""
        batch = self.source.ready(part)
        inputs = like_weights(self.net, batch.inputs)
        low = torch.autocast(self.device.type, getattr(torch, self.precision), enabled=self.precision != "float32")
        with low, explained(self.net, inputs):
            outputs = self.forward(inputs, self.only)
        outcome = self.objective(outputs, batch.targets, share)
        objective = outcome.objective / parts
        if not objective.requires_grad:
            raise AnytimeError(
                "the losses do not depend on the weights that are trained: a loss must be computed from the outputs by "
                "differentiable operations (argmax and comparisons are not), and some weights must require gradients"
            )
        self.scaler.scale(objective).backward()
        counts = torch.full_like(outcome.losses, len(batch))
        return torch.stack([outcome.losses * len(batch), outcome.errors, counts]), objective.detach()

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
        if self.guard.look_every > 1:
            self.guard.look(self.lr(max(state.position - 1, 0)), self.scaler)
        samples = self.source.samples or max(state.samples, 1)
        record: dict[str, Any] = {
            "epoch": state.epoch + 1,
            "lr": self.lr(max(state.position - 1, 0)),
            "samples_per_second": samples / max(state.seconds, 1e-9),
            "seconds": state.seconds,
            "train": {
                "losses": self.by_exit((state.losses / samples).tolist()),
                "errors": self.by_exit((state.errors / samples).tolist()),
            },
            "weights": _weights(self.scheme),
        }
        with self.average.applied():
            record |= self.validated()
        state.epoch, state.position = state.epoch + 1, 0
        state.clear()
        return record

    def validated(self) -> dict[str, Any]:
        """Losses and errors on the validation data, if there are any."""
        if self.validation is not None:
            batches = batches_of(self.net, self.validation)
        elif isinstance(self.data, Data) and self.data.validation is not None:
            batches = image_batches(self.net, self.data, self.data.validation, shared=True)
        else:
            return {}
        found = measure(self.net, batches, self.exits, self.loss, self.objective.metric, shared=True)
        return {"validation": {"losses": self.by_exit(found.losses), "errors": self.by_exit(found.errors)}}

    def by_exit(self, values: list[Any]) -> list[float | None]:
        """One value per exit; None for those not computed."""
        return spread_out(values, self.exits, self.net.exits)

    def curve(self) -> Curve | None:
        """The curve on the test data, or the validation data."""
        measures = {"metric": self.objective.metric, "loss": self.loss, "only": self.only, "shared": True}
        if isinstance(self.data, Data) and self.data.test is not None:
            return evaluate(self.net, self.data, **measures)
        return None if self.validation is None else evaluate(self.net, self.validation, **measures)

    def facts(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to be continued."""
        model = {key: value for key, value in (self.net.config or {}).items() if key != "about"}
        loss = {} if self.loss is cross_entropy else {"loss": _name(self.loss)}
        return {
            "model": model or {"model": type(self.net).__name__},
            "data": self.source.facts(),
            "scheme": str(self.scheme) if isinstance(self.scheme, nn.Module) else _name(self.scheme),
            **loss,
            "recipe": self.recipe.facts(),
            "seed": self.seed,
            "accumulate": self.accumulate,
            "precision": self.precision,
            "compiled": self.compiled,
        }


def _name(function: Callable[..., Any]) -> str:
    """The name of a function, or of the class of another callable."""
    return getattr(function, "__name__", type(function).__name__)


def _weights(scheme: Callable[[Tensor], Tensor]) -> list[float] | None:
    weights = scheme.effective if isinstance(scheme, WeightScheme) else getattr(scheme, "weights", None)
    return weights.tolist() if isinstance(weights, Tensor) else None
