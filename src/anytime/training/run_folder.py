"""The folder of a training run: what was asked for, the log, the checkpoint, and at the end the model."""

import json
import os
import platform
import time
from pathlib import Path
from typing import Any, Self

import torch
from filelock import FileLock, Timeout

from anytime.errors import AnytimeError
from anytime.evaluation import Curve
from anytime.files import read_json, sweep, write_json, write_text
from anytime.network import Network
from anytime.saving import save
from anytime.training.checkpoint import CHECKPOINT, Groups, has_checkpoint, save_checkpoint
from anytime.training.tensorboard import TensorBoard


class RunFolder:
    """Opened by one process at a time; refuses to write into a folder that holds something else.

    Args:
        path: the folder; created if it does not exist.
        facts: what the run is: model, data, scheme, recipe, seed.
        resume: whether a run that is there may be continued.
        about: more for ``run.json``, under other names than those of the facts.
    """

    def __init__(self, path: Path, facts: dict[str, Any], resume: bool, about: dict[str, Any]) -> None:
        if taken := sorted(about.keys() & {*facts, "versions", "started"}):
            raise AnytimeError(f"about: run.json has {', '.join(taken)} of its own; choose other names")
        self.path, self.facts, self.resume, self.about = path, facts, resume, about
        self.file, self.log_file = path / "run.json", path / "log.jsonl"
        self.evaluation = path / "evaluation.json"
        self.lock = FileLock(path / ".lock")
        self.tensorboard = TensorBoard(path / "tensorboard")

    def __enter__(self) -> Self:
        self._check_contents()  # before anything is created
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock.acquire(timeout=0)
        except Timeout:
            raise AnytimeError(
                f"{self.path} is in use by another training process: choose another output folder"
            ) from None
        except (OSError, NotImplementedError) as error:
            raise AnytimeError(f"cannot write to {self.path}: {error}; choose another output folder") from error
        try:
            self._check_contents()  # again: another process may have begun or ended a run since
            sweep(self.path)
            if self.file.is_file():
                self._check_facts()
                self._check_checkpoint()
            else:
                self._begin()
        except BaseException:
            self.lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.tensorboard.close()
        self.lock.release()

    def _check_contents(self) -> None:
        """Refuse a folder that holds something else than a run to resume."""
        if self.path.exists() and not self.path.is_dir():
            raise AnytimeError(f"{self.path} is a file: choose another output folder")
        if self.file.is_file() and not self.resume:
            raise AnytimeError(
                f"{self.path} holds a run already: pass resume=True to continue it, or choose another output folder"
            )
        visible = self.path.is_dir() and any(not path.name.startswith(".") for path in self.path.iterdir())
        if visible and not self.file.is_file():
            raise AnytimeError(f"{self.path} is not empty and holds no run: choose another output folder")

    def _begin(self) -> None:
        versions = {"python": platform.python_version(), "torch": torch.__version__, "threads": torch.get_num_threads()}
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        write_json(self.file, {**self.facts, **self.about, "versions": versions, "started": started})

    def _check_facts(self) -> None:
        """Refuse to continue a run that was started with other facts."""
        before = read_json(self.file)
        for fact, value in self.facts.items():
            now, then = json.loads(json.dumps(value)), before.get(fact)
            if then == now:
                continue
            if isinstance(then, dict) and isinstance(now, dict):  # only what differs
                different = sorted(key for key in {*then, *now} if then.get(key) != now.get(key))
                then, now = ({key: side.get(key) for key in different} for side in (then, now))
            raise AnytimeError(
                f"{self.path} was started with {fact} {_short(then)}, not {_short(now)}: "
                "resume it as it was, or choose another output folder"
            )

    def _check_checkpoint(self) -> None:
        """Refuse to train again from the beginning what has been trained before.

        A run writes its first checkpoint before it begins to log.
        """
        logged = self.log_file.is_file() and self.log_file.stat().st_size > 0
        if (logged or self.complete) and not has_checkpoint(self.path):
            state = "is complete" if self.complete else "has a log of what it has trained"
            raise AnytimeError(
                f"{self.path} {state}, but its {CHECKPOINT} is missing, so it cannot be continued: "
                "put the checkpoint back, or start again in another output folder"
            )

    @property
    def complete(self) -> bool:
        """Whether the trained model is there."""
        return (self.path / "config.json").is_file()

    def _check_there(self) -> None:
        if not self.file.is_file():
            raise AnytimeError(
                f"{self.path} was moved or deleted during the training; if it was moved, resume the run where it is now"
            )

    def write_checkpoint(self, tensors: Groups, about: dict[str, Any]) -> None:
        """Replace the checkpoint."""
        self._check_there()
        save_checkpoint(self.path, tensors, about)

    def log(self, record: dict[str, Any]) -> None:
        """Append an epoch to ``log.jsonl``, and to TensorBoard's files if it is installed."""
        self._check_there()
        try:
            with open(self.log_file, "a", encoding="utf-8") as file:
                file.write(json.dumps(record, allow_nan=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise AnytimeError(
                f"could not write {self.log_file}: {error}. The run can be resumed from its last checkpoint"
            ) from error
        self.tensorboard.log(record)

    def keep_epochs(self, epochs: int) -> list[dict[str, Any]]:
        """Drop the lines of the log after the checkpoint's last complete epoch; return the others."""
        lines, records = [], []
        try:
            if self.log_file.is_file():
                lines = self.log_file.read_bytes().splitlines(keepends=True)
            records = [json.loads(line.decode("utf-8")) for line in lines[:epochs]]
        except (OSError, ValueError, RecursionError) as error:
            raise AnytimeError(f"{self.log_file} is damaged ({error}): the run cannot be continued") from error
        numbers = [record.get("epoch") if isinstance(record, dict) else None for record in records]
        if numbers != list(range(1, epochs + 1)):
            raise AnytimeError(
                f"{self.log_file} does not have the epochs 1 to {epochs} of the checkpoint, one per line: "
                "the run cannot be continued"
            )
        if len(lines) > epochs:
            write_text(self.log_file, b"".join(lines[:epochs]).decode("utf-8"))
        return records

    def write_model(self, net: Network) -> None:
        """Write the model for sharing; the evaluation of an earlier one is removed."""
        self._check_there()
        self.evaluation.unlink(missing_ok=True)
        save(net, self.path)

    def write_evaluation(self, curve: Curve) -> None:
        """Write the model's evaluation, if it has none."""
        if not self.evaluation.is_file():
            write_json(self.evaluation, curve.record())


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) < 200 else text[:200] + "…"


def read_run(path: Path) -> dict[str, Any]:
    """A run folder's ``run.json``, or an error that says what the folder is instead."""
    if path.is_file():
        raise AnytimeError(f"{path} is not a run folder: it is a file; `anytime train --output …` makes one")
    if not path.is_dir():
        raise AnytimeError(
            f"{path} is not a run folder: there is no such folder; `anytime train --output {path}` makes one"
        )
    if not (path / "run.json").is_file():
        raise AnytimeError(f"{path} is not a run folder: it has no run.json; `anytime train --output …` makes one")
    run = read_json(path / "run.json")
    if not isinstance(run.get("asked", {}), dict):
        raise AnytimeError(f'{path / "run.json"} is damaged: "asked" is not a JSON object')
    return run
