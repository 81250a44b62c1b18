"""A training run's folder: what was asked for, the log, the checkpoint, and in the end the model."""

import importlib.util
import json
import os
import platform
import time
from pathlib import Path
from typing import Any, Self

import torch

from anytime.data.dataset import Data
from anytime.errors import AnytimeError
from anytime.evaluation import Curve
from anytime.files import read_json, sweep, write_json, write_text
from anytime.network import AnytimeNetwork
from anytime.saving import save
from anytime.training.checkpoint import save_checkpoint

try:
    import fcntl
except ImportError:  # Windows: two processes in one folder are not noticed there
    fcntl = None


class RunFolder:
    """Opened by one process at a time; refuses to write into a folder that holds something else.

    Args:
        path: the folder; made if it is not there.
        facts: what the run is: model, data, scheme, recipe, seed.
        resume: whether a run that is there may be continued.
        about: more for ``run.json``.
    """

    def __init__(self, path: Path, facts: dict[str, Any], resume: bool, about: dict[str, Any]) -> None:
        self.path, self.facts, self.resume, self.about = path, facts, resume, about
        self.tensorboard: Any = None

    def __enter__(self) -> Self:
        if self.path.exists() and not self.path.is_dir():
            raise AnytimeError(f"{self.path} is a file: choose another --output")
        run, there = self.path / "run.json", self._contents()
        if run.is_file() and not self.resume:
            raise AnytimeError(
                f"{self.path} holds a run already: add --resume to go on with it, or choose another --output"
            )
        if there and not run.is_file():
            raise AnytimeError(f"{self.path} is not empty and holds no run: choose another --output")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = open(self.path / ".lock", "a")
        except OSError as error:
            raise AnytimeError(f"cannot write to {self.path}: {error}; choose another --output") from error
        if fcntl:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self.lock.close()
                raise AnytimeError(
                    f"{self.path} is in use by another training process: choose another --output"
                ) from None
        try:
            sweep(self.path)
            self._agree(run)
        except BaseException:
            self.lock.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.tensorboard is not None:
            self.tensorboard.close()
        self.lock.close()

    def _contents(self) -> list[str]:
        return [p.name for p in self.path.iterdir() if not p.name.startswith(".")] if self.path.is_dir() else []

    def _agree(self, run: Path) -> None:
        """The run that is there was started with the same facts; or there is none yet."""
        if not run.is_file():
            versions = {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
            }
            started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            write_json(run, {**self.facts, **self.about, "versions": versions, "started": started})
            return
        before = read_json(run)
        for fact, value in self.facts.items():
            now, then = json.loads(json.dumps(value)), before.get(fact)
            if then == now:
                continue
            if isinstance(then, dict) and isinstance(now, dict):  # only what differs
                different = sorted(key for key in {*then, *now} if then.get(key) != now.get(key))
                then, now = ({key: side.get(key) for key in different} for side in (then, now))
            raise AnytimeError(
                f"{self.path} was started with {fact} {_short(then)}, not {_short(now)}: "
                "resume it as it was, or choose another --output"
            )

    def write_checkpoint(self, tensors: dict[str, dict[str, Any]], about: dict[str, Any]) -> None:
        """Replace the checkpoint."""
        save_checkpoint(self.path, tensors, about)

    def log(self, record: dict[str, Any]) -> None:
        """Append an epoch to ``log.jsonl``, and to TensorBoard's files where that is installed."""
        with open(self.path / "log.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._log_to_tensorboard(record)

    def keep_epochs(self, epochs: int) -> list[dict[str, Any]]:
        """Drop what the log says of epochs that the checkpoint has not seen the end of; return the rest."""
        path = self.path / "log.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)[:epochs] if path.is_file() else []
        try:
            records = [json.loads(line) for line in lines]
        except ValueError as error:
            raise AnytimeError(f"{path} is damaged ({error}): the run cannot be continued") from error
        if len(records) != epochs:
            raise AnytimeError(
                f"{path} has {len(records)} epochs, the checkpoint {epochs}: the run cannot be continued"
            )
        write_text(path, "".join(lines))
        return records

    def _log_to_tensorboard(self, record: dict[str, Any]) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            return
        epoch = record["epoch"]
        if self.tensorboard is None:
            from torch.utils.tensorboard import SummaryWriter

            self.tensorboard = SummaryWriter(str(self.path / "tensorboard"), purge_step=epoch)
        curves = {
            f"{split} {kind}": record[split][kind]
            for split in ("train", "validation")
            for kind in record.get(split, {})
        }
        for curve, values in {**curves, "weights": record["weights"] or []}.items():
            for exit, value in enumerate(values):
                if value is not None:
                    self.tensorboard.add_scalar(f"{curve}/exit {exit + 1:02}", value, epoch)

    def finish(self, net: AnytimeNetwork, data: Data, curve: Curve | None) -> None:
        """Write the model for sharing and what it reached."""
        if curve is not None:
            write_json(self.path / "evaluation.json", curve.record())
        save(
            net,
            self.path,
            data=data.name,
            classes=data.classes,
            mean=data.mean,
            std=data.std,
            shape=list(data.shape),
        )


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) < 200 else text[:200] + "…"


def read_run(path: Path) -> dict[str, Any]:
    """A run folder's ``run.json``, or an error that says what the folder is instead."""
    if not path.is_dir():
        raise AnytimeError(
            f"{path} is not a run folder: there is no such folder; `anytime train --output {path}` makes one"
        )
    if not (path / "run.json").is_file():
        raise AnytimeError(f"{path} is not a run folder: it has no run.json; `anytime train --output …` makes one")
    run = read_json(path / "run.json")
    if not isinstance(run.get("asked", {}), dict):
        raise AnytimeError(f"{path / 'run.json'} is damaged: what was asked for is no JSON object")
    return run
