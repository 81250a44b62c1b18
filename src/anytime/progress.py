"""Progress of a training: a live bar in a terminal, one line per epoch elsewhere."""

import importlib.util
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self, TypeVar

from torch import Tensor

from anytime.errors import require

T = TypeVar("T")


class Progress(AbstractContextManager["Progress"], Protocol):
    """What the training loop reports its steps and epochs to."""

    def step(self, epoch: int, samples: int, losses: Tensor) -> None:
        """A step on a batch of ``samples`` is done; ``losses`` are those of the exits, on any device."""

    def epoch(self, record: dict[str, Any]) -> None:
        """An epoch has ended; ``record`` is its line of the log."""


def progress(
    title: str,
    epochs: int,
    samples: int | None,
    done: int = 0,
    show: bool = True,
    unit: str = "images",
    percent: bool = True,
) -> Progress:
    """A bar if standard error is a terminal, else lines.

    Args:
        title: what is being trained.
        epochs: number of epochs.
        samples: per epoch; None if not known.
        done: samples trained on before the run was resumed.
        show: whether to show anything.
        unit: what a sample is called.
        percent: whether errors are shares, which are shown in percent.
    """
    if not show:
        return Silence()
    if sys.stderr.isatty() and importlib.util.find_spec("rich"):
        return Bar(title, epochs, samples, done, unit)
    return Lines(title, epochs, unit, percent)


class Silence(Progress):
    """Progress that is not shown."""

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None: ...
    def step(self, epoch: int, samples: int, losses: Tensor) -> None: ...  # noqa: D102
    def epoch(self, record: dict[str, Any]) -> None: ...  # noqa: D102


class Lines(Silence):
    """One line per epoch on standard error, at most one per second: for logs and pipes."""

    def __init__(self, title: str, epochs: int, unit: str = "images", percent: bool = True) -> None:
        self.title, self.epochs, self.unit, self.percent, self.last = title, epochs, unit, percent, 0.0

    def epoch(self, record: dict[str, Any]) -> None:
        """Print one line."""
        now = time.monotonic()
        if now - self.last < 1 and record["epoch"] != self.epochs:
            return
        self.last = now
        errors = (record.get("validation") or record["train"])["errors"]
        form = ".1%" if self.percent else ".4g"
        print(
            f"{self.title}  epoch {record['epoch']}/{self.epochs}  {record['samples_per_second']:,.0f} {self.unit}/s  "
            f"loss {spread(record['train']['losses'], '.3f')}  error {spread(errors, form)}",
            file=sys.stderr,
            flush=True,
        )


class Bar(Silence):
    """A bar with samples per second, the losses of the first, middle and last exit, and the time left."""

    def __init__(self, title: str, epochs: int, samples: int | None, done: int, unit: str = "images") -> None:
        rich = require("rich.progress", "cli")
        console = require("rich.console", "cli").Console(stderr=True)
        self.epochs, self.unit = epochs, unit
        self.bar = rich.Progress(
            rich.TextColumn("[bold]{task.description}"),
            rich.BarColumn(bar_width=None),
            rich.TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            rich.TextColumn("[cyan]{task.fields[speed]}"),
            rich.TextColumn("loss {task.fields[loss]}"),
            rich.TimeRemainingColumn(),
            console=console,
        )
        self.start, self.seen, self.new, self.drawn = time.monotonic(), 0, 0, 0.0
        self.task = self.bar.add_task(
            title,
            total=epochs * samples if samples else None,
            completed=done,
            epoch=0,
            epochs=epochs,
            speed="",
            loss="…",
        )

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self.bar.update(self.task, advance=self.new)
        if failed is None:  # the last steps came within the fifth of a second in which nothing is drawn
            done = self.bar.tasks[0].completed
            total = self.bar.tasks[0].total or done
            self.bar.update(self.task, completed=total, total=total, epoch=self.epochs)
        self.bar.stop()

    def step(self, epoch: int, samples: int, losses: Tensor) -> None:
        """Move the bar at most five times per second, since reading the losses waits for the device."""
        self.seen += samples
        self.new += samples
        now = time.monotonic()
        if now - self.drawn < 0.2:
            return
        speed = f"{self.seen / max(now - self.start, 1e-9):,.0f} {self.unit}/s"
        loss = spread(losses.tolist(), ".3f")
        self.bar.update(self.task, advance=self.new, epoch=epoch, speed=speed, loss=loss)
        self.drawn, self.new = now, 0


def counted(items: Iterable[T], total: int, title: str, show: bool = True) -> Iterator[T]:
    """Yield the items with a progress bar; without a terminal, print one line at the start."""
    if not show:
        yield from items
    elif sys.stderr.isatty() and importlib.util.find_spec("rich"):
        console = require("rich.console", "cli").Console(stderr=True)
        yield from require("rich.progress", "cli").track(items, title, total, console=console)
    else:
        print(f"{title}: {total:,}", file=sys.stderr, flush=True)
        yield from items


def spread(values: Sequence[float | None], form: str) -> str:
    """The first, middle and last of the values that are not None.

    Examples:
        >>> spread([2.3, 1.5, 1.2, 0.9, 0.5], ".1f")
        '2.3 … 1.2 … 0.5'
    """
    there = [value for value in values if value is not None]
    ends = there if len(there) < 3 else [there[0], there[len(there) // 2], there[-1]]
    return " … ".join(format(value, form) for value in ends)
