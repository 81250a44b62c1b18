"""The requests in flight, in the orders in which the scheduler needs them. The symbols are those of ``scheduler``."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from anytime.serving.tables import PRICES, Tables

ROWS = 64
"""A plan has at most so many rows: up to so many requests are planned one by one, more in groups."""
KINDS = 256
"""So many kinds of requests are remembered before those that are not in flight are forgotten."""

by_deadline, by_key = attrgetter("deadline"), attrgetter("key")


@dataclass(slots=True, eq=False)
class Task:
    """A request in flight, as the scheduler sees it."""

    id: int
    deadline: float
    """d_i, the moment by which its answer must be ready."""
    form: Hashable = None
    """Only tasks of the same form can share a batch."""
    size: int = 1
    """Number of samples."""
    stage: int = 0
    """s_i, number of stages that it has been through."""
    exit: int = -1
    """The latest exit that it has reached; -1: none, it is waiting."""
    weight: float = 1.0
    """w_i, what going on is worth for it, compared with the average sample: less if an exit was sure of it."""
    shift: int = 0
    """The same in prices, see ``Tables.shift``."""
    work: Any = None
    """What the runner keeps of it: its input, batch and latest logits."""
    key: tuple[float, int] = (0.0, 0)
    """Deadline and number, by which tasks are in order; set by ``Flight.add``."""
    slot: int = -1
    """Where the arrays have it; set by ``Flight.add``."""
    kind: int = -1
    """The number of its form, stage and shift; set by ``Flight``."""

    @property
    def place(self) -> tuple[int, Hashable]:
        """Tasks at one place can share a batch."""
        return self.stage, self.form


class Kind(NamedTuple):
    """What tasks of the same form, stage and shift have in common."""

    tables: Tables
    place: tuple[int, Hashable]
    shift: int


class Rows(NamedTuple):
    """The tasks in the order of their deadlines, in rows of ``step``: what is planned is planned by rows."""

    step: int
    """How many tasks a row has; the last one may have fewer."""
    deadlines: list[float]
    """The earliest of each row."""
    waiting: list[int]
    """Samples without an exit in each row."""
    reserved: list[float]
    """Seconds of the heads that answer before a task of each row; those of the row too, if it has several tasks."""
    needs: Callable[[int], list[float]]
    """Seconds that each row needs at a price."""


class Flight:
    """All requests in flight.

    Args:
        tables: by form: times and gains.
    """

    def __init__(self, tables: Callable[[Hashable], Tables]) -> None:
        self.tables = tables
        self.tasks: list[Task] = []
        """Earliest deadline first."""
        self.queues: dict[tuple[int, Hashable], list[Task]] = {}
        """The same by place; none is empty."""
        self.forms: Counter[Hashable] = Counter()
        """How many tasks there are of each form."""
        self.sized = 0
        """How many tasks have more than one sample."""
        self._count = 0
        self._free = list(range(ROWS))
        self._order = np.zeros(ROWS, np.intp)  # the slots of ``tasks``
        self._kind, self._size = np.zeros(ROWS, np.intp), np.zeros(ROWS)  # by slot
        self._numbers: dict[tuple[Hashable, int, int], int] = {}
        self._kinds: list[Kind] = []
        self._needs: dict[int, list[list[float]]] = {}  # by level: of each kind at each price
        self._matrices: dict[int, np.ndarray] = {}  # the same, see ``_matrix``

    def samples(self, tasks: Sequence[Task]) -> int:
        """How many samples tasks have."""
        return sum([task.size for task in tasks]) if self.sized else len(tasks)

    def add(self, task: Task) -> None:
        """Take a task up."""
        task.key = task.deadline, self._count
        self._count += 1
        if not self._free:
            self._grow()
        task.slot, many = self._free.pop(), len(self.tasks)
        at = bisect_left(self.tasks, task.key, key=by_key)
        self.tasks.insert(at, task)
        self._order[at + 1 : many + 1] = self._order[at:many]
        self._order[at] = task.slot
        self._size[task.slot] = task.size
        self.forms[task.form] += 1
        self.sized += task.size > 1
        self._enter(task)

    def remove(self, task: Task) -> None:
        """Drop a task."""
        at, many = bisect_left(self.tasks, task.key, key=by_key), len(self.tasks)
        del self.tasks[at]
        self._order[at : many - 1] = self._order[at + 1 : many]
        self._free.append(task.slot)
        self.forms[task.form] -= 1
        if not self.forms[task.form]:
            del self.forms[task.form]
        self.sized -= task.size > 1
        self._leave(task)

    def move(self, tasks: Sequence[Task], exit: int) -> None:
        """Tasks have been through their next stage and reached an exit, perhaps the one that they had."""
        for task in tasks:
            self._leave(task)
            task.stage, task.exit = task.stage + 1, exit
            self._enter(task)

    def weigh(self, task: Task, weight: float) -> None:
        """Going on is worth this for a task."""
        task.weight, task.shift = weight, self.tables(task.form).shift(weight)
        self._know(task)

    def _enter(self, task: Task) -> None:
        insort(self.queues.setdefault(task.place, []), task, key=by_key)
        self._know(task)

    def _leave(self, task: Task) -> None:
        queue = self.queues[task.place]
        queue.remove(task)
        if not queue:
            del self.queues[task.place]

    def _know(self, task: Task) -> None:
        place = task.form, task.stage, task.shift
        number = self._numbers.get(place)
        if number is None:
            if len(self._kinds) >= KINDS + len(self.tasks):  # once in a while: forms come and go
                self._numbers.clear()
                self._kinds.clear()
                for other in self.tasks:
                    if other is not task:
                        self._know(other)
            number = self._numbers[place] = len(self._kinds)
            self._kinds.append(Kind(self.tables(task.form), task.place, task.shift))
            self._needs.clear()
            self._matrices.clear()
        task.kind = self._kind[task.slot] = number

    def _grow(self) -> None:
        many = len(self._kind)
        self._free = list(range(many, 2 * many))
        self._order, self._kind, self._size = (
            np.concatenate([each, np.zeros_like(each)]) for each in (self._order, self._kind, self._size)
        )

    def rows(self, batch: float) -> Rows:
        """The rows of a plan for batches of this size."""
        level = self.tables(self.tasks[0].form).level(batch)
        return self._one_by_one(level) if len(self.tasks) <= ROWS else self._grouped(level)

    def _one_by_one(self, level: int) -> Rows:
        tasks, reserved, total, seen = self.tasks, [], 0.0, set()
        for task in tasks:
            reserved.append(total)
            if task.exit >= 0:
                kind = task.kind
                fixed, each = self._kinds[kind].tables.answer[task.stage]
                total += each * task.size
                if kind not in seen:
                    seen.add(kind)
                    total += fixed
        waiting = [task.size if task.exit < 0 else 0 for task in tasks]
        kinds, known = [task.kind for task in tasks], self._needs_at(level)

        def needs(price: int) -> list[float]:
            if self.sized:
                return [known[task.kind][price] * task.size for task in tasks]
            return [known[kind][price] for kind in kinds]

        return Rows(1, [task.deadline for task in tasks], waiting, reserved, needs)

    def _grouped(self, level: int) -> Rows:
        """Equal numbers of tasks whose deadlines are next to each other: planned as if all were due with the first."""
        many, kinds, matrix = len(self.tasks), len(self._kinds), self._matrix(level)
        step = -(-many // ROWS)
        rows = -(-many // step)
        order = self._order[:many]
        # How many samples of each kind are in each row; the last row is filled up with a kind of its own.
        kind = np.full(rows * step, kinds, np.intp)
        kind[:many] = self._kind[order]
        kind.reshape(rows, step)[:] += np.arange(rows)[:, None] * (kinds + 1)
        weights = np.append(self._size[order], np.zeros(len(kind) - many)) if self.sized else None
        counts = np.bincount(kind, weights, rows * (kinds + 1)).reshape(rows, kinds + 1)[:, :-1].astype(float)
        sums = counts @ matrix
        there = counts > 0
        fixed = np.bincount(there.argmax(0), matrix[:, -1] * there.any(0), rows)  # once, where a kind comes first
        return Rows(
            step,
            [task.deadline for task in self.tasks[::step]],
            [round(samples) for samples in sums[:, -3].tolist()],
            np.cumsum(sums[:, -2] + fixed).tolist(),
            lambda price: sums[:, price].tolist(),
        )

    def _needs_at(self, level: int) -> list[list[float]]:
        if level not in self._needs:
            self._needs[level] = [kind.tables.needs_of(level, kind.place[0], kind.shift) for kind in self._kinds]
        return self._needs[level]

    def _matrix(self, level: int) -> np.ndarray:
        """Of each kind: needs at each price, whether it waits, and seconds of its answer by sample and by batch."""
        if level not in self._matrices:
            matrix = np.zeros((len(self._kinds), PRICES + 3))
            matrix[:, :PRICES] = self._needs_at(level)
            for row, (tables, (stage, _), _) in zip(matrix, self._kinds, strict=True):
                head = tables.answer[stage]
                row[PRICES:] = stage < tables.first, head.each, head.fixed
            self._matrices[level] = matrix
        return self._matrices[level]
