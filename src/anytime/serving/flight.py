"""The requests in flight, in the orders in which the scheduler needs them. The symbols are those of ``scheduler``."""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from anytime.inference.policy import Scorer
from anytime.serving.ways import PRICES, Tables

SINGLE = 64
"""Number of requests up to which each is planned by itself."""
ROWS = 32
"""Number of groups in which more requests are planned."""
COHORTS = 256
"""Number of cohorts that are kept before those without tasks are dropped."""

WAITING, EACH, FIXED = PRICES, PRICES + 1, PRICES + 2
"""Columns of a cohort's table after its needs at each price."""

by_deadline, by_key = attrgetter("deadline"), attrgetter("key")

Position = tuple[int, Hashable]
"""Number of stages that a task has been through, and its form: tasks at one position can share a batch."""


@dataclass(slots=True, eq=False)
class EngineTask:
    """A request in an engine's process."""

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
    x: Any = None
    """The input."""
    streams: bool = False
    """Whether every exit is wanted."""
    batch: Any = None
    """The runner's batch that it is in."""
    logits: Any = None
    """Of its latest exit, if that was evaluated."""
    scorer: Scorer | None = None
    score: float | None = None
    """The policy's score at the first exit, if there is a policy."""
    shown: int = -1
    """The latest exit that was shown to a stream."""
    key: tuple[float, int] = (0.0, 0)
    """Deadline and number, by which tasks are in order; set by ``Flight.add``."""
    slot: int = -1
    """Its index in the arrays; set by ``Flight.add``."""
    cohort: int = -1
    """The number of its cohort; set by ``Flight``."""

    @property
    def position(self) -> Position:
        """Its position."""
        return self.stage, self.form


class Cohort(NamedTuple):
    """What tasks of the same form, stage and shift have in common."""

    tables: Tables
    position: Position
    shift: int


class PlanRows(NamedTuple):
    """The tasks in the order of their deadlines, in rows of ``step``: what is planned is planned by rows."""

    step: int
    """How many tasks a row has; the last one may have fewer."""
    deadlines: list[float]
    """The earliest of each row."""
    waiting: list[float]
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
        self.tasks: list[EngineTask] = []
        """Earliest deadline first."""
        self.deadlines: list[float] = []
        """Those of ``tasks``."""
        self.queues: dict[Position, list[EngineTask]] = {}
        """The same tasks by position; no queue is empty."""
        self.forms: Counter[Hashable] = Counter()
        """How many tasks there are of each form."""
        self.sized = 0
        """How many tasks have more than one sample."""
        self._count = 0
        self._free = list(range(SINGLE))
        self._order = np.zeros(SINGLE, np.intp)  # the slots of ``tasks``
        self._cohort, self._size = np.zeros(SINGLE, np.intp), np.zeros(SINGLE)  # by slot
        self._numbers: dict[tuple[Hashable, int, int], int] = {}
        self._cohorts: list[Cohort] = []
        self._known: dict[int, tuple[list[tuple[float, ...]], np.ndarray]] = {}  # by level, see ``_columns``

    def samples(self, tasks: Sequence[EngineTask]) -> int:
        """How many samples tasks have."""
        return sum([task.size for task in tasks]) if self.sized else len(tasks)

    def index(self, task: EngineTask) -> int:
        """The index of a task in ``tasks``."""
        begin = bisect_left(self.deadlines, task.deadline)
        if self.tasks[begin] is task:
            return begin
        return bisect_left(self.tasks, task.key, begin, key=by_key)

    def add(self, task: EngineTask) -> None:
        """Add a task."""
        task.key = task.deadline, self._count
        self._count += 1
        if not self._free:
            self._grow()
        task.slot, many = self._free.pop(), len(self.tasks)
        at = bisect_right(self.deadlines, task.deadline)
        self.tasks.insert(at, task)
        self.deadlines.insert(at, task.deadline)
        self._order[at + 1 : many + 1] = self._order[at:many]
        self._order[at] = task.slot
        self._size[task.slot] = task.size
        self.forms[task.form] += 1
        self.sized += task.size > 1
        queue = self.queues.setdefault(task.position, [])
        if not queue or queue[-1].key < task.key:
            queue.append(task)
        else:
            insort(queue, task, key=by_key)
        self._know(task)

    def remove(self, task: EngineTask) -> None:
        """Remove a task."""
        at, many = self.index(task), len(self.tasks)
        del self.tasks[at], self.deadlines[at]
        self._order[at : many - 1] = self._order[at + 1 : many]
        self._free.append(task.slot)
        self.forms[task.form] -= 1
        if not self.forms[task.form]:
            del self.forms[task.form]
        self.sized -= task.size > 1
        queue = self.queues[task.position]
        del queue[0 if queue[0] is task else bisect_left(queue, task.key, key=by_key)]
        if not queue:
            del self.queues[task.position]

    def move(self, tasks: Sequence[EngineTask], exit: int) -> None:
        """Move tasks of one position, earliest deadline first, on by a stage; ``exit`` is the latest they reached."""
        position = stage, form = tasks[0].position
        queue, first = self.queues[position], len(tasks)
        if queue[:first] == tasks:
            del queue[:first]
        else:
            for task in tasks:
                del queue[bisect_left(queue, task.key, key=by_key)]
        if not queue:
            del self.queues[position]
        for task in tasks:
            task.stage, task.exit = stage + 1, exit
            self._know(task)
        queue = self.queues.setdefault((stage + 1, form), [])
        if not queue or queue[-1].key < tasks[0].key:
            queue += tasks
        else:
            for task in tasks:
                insort(queue, task, key=by_key)

    def weigh(self, task: EngineTask, weight: float) -> None:
        """Set the weight of a task."""
        task.weight, task.shift = weight, self.tables(task.form).shift(weight)
        self._know(task)

    def _know(self, task: EngineTask) -> None:
        traits = task.form, task.stage, task.shift
        number = self._numbers.get(traits)
        if number is None:
            if len(self._cohorts) >= COHORTS + len(self.tasks):  # drop those without tasks
                self._numbers.clear()
                self._cohorts.clear()
                for other in self.tasks:
                    if other is not task:
                        self._know(other)
            number = self._numbers[traits] = len(self._cohorts)
            self._cohorts.append(Cohort(self.tables(task.form), task.position, task.shift))
            self._known.clear()
        task.cohort = self._cohort[task.slot] = number

    def _grow(self) -> None:
        many = len(self._cohort)
        self._free = list(range(many, 2 * many))
        self._order, self._cohort = np.resize(self._order, 2 * many), np.resize(self._cohort, 2 * many)
        self._size = np.resize(self._size, 2 * many)

    def rows(self, level: int) -> PlanRows:
        """The rows of a plan for batches of a level."""
        return self._one_by_one(level) if len(self.tasks) <= SINGLE else self._grouped(level)

    def _one_by_one(self, level: int) -> PlanRows:
        columns, tasks = self._columns(level), self.tasks
        cohorts = [task.cohort for task in tasks]
        look_up = itemgetter(*cohorts, 0)  # one more, since that of one is no tuple

        def of_tasks(column: int) -> list[float]:
            values = list(look_up(columns[column]))
            del values[-1]
            return [value * task.size for value, task in zip(values, tasks, strict=True)] if self.sized else values

        heads, fixed = of_tasks(EACH), columns[FIXED]
        for cohort, first in dict(zip(reversed(cohorts), range(len(cohorts) - 1, -1, -1), strict=True)).items():
            heads[first] += fixed[cohort]
        reserved = list(accumulate(heads[:-1], initial=0.0))
        return PlanRows(1, self.deadlines, of_tasks(WAITING), reserved, of_tasks)

    def _grouped(self, level: int) -> PlanRows:
        """Groups of equal numbers of tasks with neighboring deadlines, planned as if all were due with the first."""
        many, cohorts, matrix = len(self.tasks), len(self._cohorts), self._matrix(level)
        step = -(-many // ROWS)
        rows = -(-many // step)
        order = self._order[:many]
        cells = self._cohort[order] + (np.arange(rows) * cohorts).repeat(step)[:many]
        weights = self._size[order] if self.sized else None
        counts = np.bincount(cells, weights, rows * cohorts).reshape(rows, cohorts).astype(float)
        sums = counts @ matrix
        # A head's fixed seconds count once, in the first row that has its cohort.
        fixed = np.bincount((counts > 0).argmax(0), matrix[:, FIXED] * counts.any(0), rows)
        return PlanRows(
            step,
            self.deadlines[::step],
            sums[:, WAITING].tolist(),
            np.cumsum(sums[:, EACH] + fixed).tolist(),
            lambda price: sums[:, price].tolist(),
        )

    def _columns(self, level: int) -> list[tuple[float, ...]]:
        """For each cohort: needs at each price, whether it waits, and seconds of its answer by sample and by batch."""
        if level not in self._known:
            rows = []
            for tables, (stage, _), shift in self._cohorts:
                head = tables.answer[stage]
                rows.append((*tables.needs_of(level, stage, shift), int(stage < tables.first), head.each, head.fixed))
            columns = list(zip(*rows, strict=True))
            self._known[level] = columns, np.array(rows)
        return self._known[level][0]

    def _matrix(self, level: int) -> np.ndarray:
        self._columns(level)
        return self._known[level][1]
