"""``fit``: train a network, write its run folder, resume bit for bit what was interrupted."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anytime import distributed
from anytime.batches import check_batches, runs_out
from anytime.data.dataset import Data
from anytime.errors import AnytimeError, check_number
from anytime.evaluation import Curve, check_arguments
from anytime.losses import Function, cross_entropy, tasks_of
from anytime.network import Network
from anytime.tables import Table, number, share
from anytime.training.checkpoint import has_checkpoint, load_checkpoint
from anytime.training.loop import Training
from anytime.training.recipe import Recipe, recipe_with
from anytime.training.run_folder import RunFolder
from anytime.weights import TaskWeights, create_scheme
from anytime.weights.first_order import watchers, watching
from anytime.weights.trained import trained_exits


@dataclass(frozen=True)
class FitResult:
    """What training gives back besides the trained network."""

    history: list[dict[str, Any]] = field(repr=False)
    """One record per epoch, as in the run folder's ``log.jsonl``: losses and errors of all exits, their weights, the
    learning rate of the epoch's last step (``lr``) and the time."""
    curve: Curve | None
    """The anytime curve on the test images; if there are none, on the validation batches. None
    if there are none of these either."""
    folder: Path | None

    def __str__(self) -> str:
        """One line per exit, as the last epoch left it."""
        return str(self._table())

    def _repr_html_(self) -> str:
        return self._table().html()

    def _table(self) -> Table:
        last = self.history[-1]
        columns = {"train loss": [number(each) for each in last["train"]["losses"]]}
        if last["weights"] is not None and len(last["weights"]) == len(columns["train loss"]):
            columns["weight"] = [number(each) for each in last["weights"]]
        if "validation" in last:
            columns["validation error"] = [number(each) for each in last["validation"]["errors"]]
        if self.curve is not None:
            columns = {"cost": [share(each) for each in self.curve.costs.fractions]} | columns
            columns[self.curve.metric] = [number(each) for each in self.curve.errors]
        rows = [[str(n), *cells] for n, cells in enumerate(zip(*columns.values(), strict=True), start=1)]
        return Table(["exit", *columns], rows, f"After epoch {last['epoch']}")


def fit(
    net: Network,
    data: Any,
    scheme: str | Callable[[Tensor], Tensor] = "adaloss",
    *,
    loss: Function = cross_entropy,
    metric: Function | None = None,
    validation: Any = None,
    recipe: Recipe | None = None,
    seed: int = 0,
    output: str | Path | None = None,
    resume: bool = False,
    checkpoint_seconds: float = 30,
    accumulate: int = 1,
    precision: str = "float32",
    compiled: bool = False,
    features_gb: float = 2.0,
    show: bool = True,
    on_step: Callable[[dict[str, Any]], object] | None = None,
    on_epoch: Callable[[dict[str, Any]], object] | None = None,
    about: dict[str, Any] | None = None,
    **changes: Any,
) -> FitResult:
    """Train all exits of a network together.

    A seed makes the run repeatable bit for bit on one machine with the same number of threads: the order of the images,
    their augmentation and dropout depend on seed, epoch and position alone.

    Under ``torch.distributed`` every process calls this with the same arguments and trains on its part of each batch;
    gradients, batch-norm statistics and losses are averaged over all processes, and only the first one writes. With
    other batches than those of a ``Data``, each process passes a loader of its own part of the samples (as
    ``DistributedSampler`` makes), all with the same number of batches.

    Args:
        net: the network, on the device to train on. It is trained in place.
        data: batches: a ``DataLoader`` or any other iterable of (inputs, targets), or of dicts with the targets under
            ``labels``, which can be iterated once per epoch; they are moved to the network's device. Or a ``Data``.
        scheme: the objective: a weight scheme's name (see ``create_scheme``) or any callable from the losses (a tensor
            of L) to a scalar. If it has an attribute ``only`` (``OnlyExit``), only those exits are computed.
        loss: from the outputs of an exit and the targets to one loss per sample; see ``anytime.losses``. With
            :class:`anytime.losses.MultiTask` the scheme weighs every exit and task.
        metric: likewise, for the errors in the log and the curve; see ``anytime.metrics``. Default: the share of wrong
            answers for a loss about classes, else the loss.
        validation: batches that are evaluated after every epoch; of an iterator a list is made. Default: the validation
            images of a ``Data``.
        recipe: the hyperparameters. Default: for a frozen network (``net.freeze()``) the recipe for heads, after
            ``net.unfreeze()`` that for fine-tuning; else the recipe that suits the data, as on the command line, and
            for other batches the paper's, ``Recipe()``.
        seed: of the order of the images, their augmentation and dropout. The caller's own generators are left alone.
            For other batches torch's generator is seeded before each one is fetched: so a ``DataLoader`` without a
            generator of its own shuffles by this seed.
        output: the run folder, for checkpoints, log and model. None: nothing is written.
        resume: continue from the folder's checkpoint if there is a run in it. The result is bit for bit that of an
            uninterrupted run. With other batches than those of a ``Data``, the epoch that was interrupted is begun
            anew, unless the loader has a state of its own (torchdata's ``StatefulDataLoader``); the result is the same
            if the loader's order and random changes depend on torch's generator or on the epoch alone.
        checkpoint_seconds: minimum time between two checkpoints; 0 writes one after every step.
        accumulate: split each step's batch into this many parts (at most one for each sample), computed one after the
            other, to save memory. The scheme is called once for each part.
        precision: ``float32``, or ``bfloat16`` or ``float16`` on devices that are faster with it.
        compiled: run the network through ``torch.compile``: slow to start, faster afterwards.
        features_gb: of a frozen network the heads alone are trained. If the samples are the same in every epoch (a
            ``Data`` without augmentation, a list of batches, a ``DataLoader`` whose samples do not change), the
            features are computed once and kept in memory up to so many gigabytes; what is more goes to a temporary
            file. 0: they are computed anew in every epoch.
        show: whether to show progress.
        on_step: called after every step with a dict: ``epoch`` and ``step``, counted from 1, ``lr``, and ``losses``, a
            tensor on the network's device (to read it is to wait for the device).
        on_epoch: called after every epoch with its line of the log, a dict; see :class:`FitResult`.
        about: more to write to the run folder's ``run.json``, under names that it does not have itself.
        changes: single options of the recipe, e.g. ``epochs=10, lr=0.05``.

    Examples:
        >>> import anytime
        >>> data = anytime.load_data("digits")
        >>> net = anytime.create_model("resann-1-8", in_channels=1)
        >>> result = anytime.fit(net, data, "adaloss", epochs=2, show=False)
        >>> [round(weight, 1) for weight in result.history[-1]["weights"]][-1]
        1.0
        >>> net = anytime.AnytimeNetwork([nn.Linear(8, 8), nn.Linear(8, 8)], [nn.Linear(8, 1), nn.Linear(8, 1)])
        >>> batches = [(torch.randn(16, 8), torch.randn(16)) for _ in range(4)]
        >>> result = anytime.fit(net, batches, loss=anytime.losses.squared, epochs=2, lr=0.01, show=False)
    """
    check_arguments("fit", net, data)
    if validation is not None:
        check_batches("validation", validation)
        validation = list(validation) if runs_out(validation) else validation
    recipe = recipe_with(recipe, data, changes, net)
    check_number("features_gb", features_gb)
    if not isinstance(scheme, str) and not callable(scheme):
        raise AnytimeError(f"scheme={scheme!r} must be a name such as 'adaloss', or a function of the losses")
    if not isinstance(output, str | os.PathLike | None):
        raise AnytimeError(f"output={output!r} must be a folder, as a string or a path")
    check_number("checkpoint_seconds", checkpoint_seconds)
    if not any(trained_exits(net)):
        raise AnytimeError(
            "no parameter of this network is trained: its weights are frozen and its heads have none; "
            "net.requires_grad_() trains everything"
        )
    device = next(net.parameters()).device
    tasks = tasks_of(loss)
    if isinstance(scheme, str):
        scheme = create_scheme(scheme, net.exits) if tasks == 1 else TaskWeights(net.exits, tasks, scheme)
    if isinstance(scheme, nn.Module):
        scheme.to(device).train()  # in eval mode an adaptive scheme would not adapt
    if compiled and watchers(scheme):
        raise AnytimeError("the scheme first-order looks into the network, which compiled=True does not allow")
    images = isinstance(data, Data)
    if isinstance(data, Data) and net.preprocessing is not None:
        data = data.normalized_as(net.preprocessing)
    training = Training(
        net=net,
        data=data.to(device) if images else data,
        scheme=scheme,
        recipe=recipe,
        seed=seed,
        accumulate=accumulate,
        precision=precision,
        compiled=compiled,
        features_gb=features_gb,
        loss=loss,
        metric=metric,
        validation=validation,
        on_step=on_step,
        on_epoch=on_epoch,
    )
    first = distributed.rank() == 0
    path = None if output is None else Path(output)
    place = RunFolder(path, training.facts(), resume, about or {}) if path and first else nullcontext()
    with (
        watching(scheme, net, tasks),
        place as folder,
        torch.random.fork_rng([device] if device.type == "cuda" else []),
    ):
        distributed.wait()  # the first process has looked at the folder
        training.prepare(show and first)
        if path and has_checkpoint(path):
            training.state.restore(*load_checkpoint(path))
        if folder:
            training.history = folder.keep_epochs(training.state.epoch)
        distributed.wait()  # all have read the checkpoint
        if images:
            net.preprocessing = data.preprocessing
        complete = bool(folder and folder.complete and training.state.finished)
        training.run(folder, checkpoint_seconds, show and first)
        training.average.apply()
        if folder and not complete:
            folder.write_model(net)  # first: an evaluation that fails must not lose it
        curve = training.curve()
        if folder and curve:
            folder.write_evaluation(curve)
        distributed.wait()
    return FitResult(training.history, curve, path)
