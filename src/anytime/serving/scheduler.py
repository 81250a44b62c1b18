"""What to do at a stage boundary: one decision, a function of the time and the requests in flight alone."""

from bisect import insort
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import log
from operator import attrgetter
from typing import Any

import numpy as np

from anytime.serving.slowdown import Pace, SlowDown
from anytime.serving.tables import PRICES, Tables

by_deadline = attrgetter("deadline")


@dataclass(slots=True, eq=False)
class Task:
    """A request in flight, as the scheduler sees it."""

    id: int
    deadline: float
    """The moment by which its answer must be ready."""
    form: Hashable = None
    """Only tasks of the same form can share a batch."""
    size: int = 1
    """Number of samples."""
    stage: int = 0
    """Number of stages that it has been through."""
    exit: int = -1
    """The latest exit that it has reached."""
    weight: float = 1.0
    """What going on is worth for it, compared with the average sample: less if an exit was sure of it."""
    of: Any = None
    """Whatever belongs to it."""


@dataclass(slots=True)
class Decision:
    """What to do now: answer some tasks with the exit that they have, or run the next stage of some."""

    answer: Sequence[Task] = ()
    run: Sequence[Task] = ()


class Scheduler:
    """Decides at every stage boundary. Knows times only as they are passed to it.

    Each request is worth the accuracy of the exit that answers it. The plan for those in flight is found in the order
    of their deadlines, with the time that is left until each: the highest common depth, in accuracy gained per second,
    at which everybody is in time; where a group of early deadlines is what limits it, those after them may go deeper.
    Of the planned next stages the one runs that gains most per second, unless the plan of an earlier deadline would
    not survive it.

    Args:
        tables: by form: times and gains.
        largest: the largest batch.
    """

    def __init__(self, tables: Callable[[Hashable], Tables], largest: int) -> None:
        self.tables, self.largest = tables, largest
        self.tasks: list[Task] = []
        """Those in flight, earliest deadline first."""
        self.slow = SlowDown()
        self.usual = 1.0
        """The running mean of the batches."""

    def add(self, task: Task) -> None:
        """Take a task up."""
        insort(self.tasks, task, key=by_deadline)

    def remove(self, task: Task) -> None:
        """Drop a task: it is answered, failed or cancelled."""
        self.tasks.remove(task)

    def ran(self, tasks: Sequence[Task], seconds: float) -> None:
        """Learn from a stage that has run."""
        size = sum(task.size for task in tasks)
        self.slow.note(self.tables(tasks[0].form).seconds(tasks[0].stage, size), seconds)
        self.usual += 0.1 * (size - self.usual)

    def decide(self, now: float) -> Decision:
        """What to do at this moment; nothing if no task is in flight."""
        tasks = self.tasks
        if not tasks:
            return Decision()
        slow = self.slow
        over = [task for task in tasks if self._is_over(task, now)]
        if over:
            return Decision(answer=over)
        planned, slack = self._plan(now)
        groups: dict[Any, list[int]] = {}
        for i in planned:
            task = tasks[i]
            groups.setdefault((task.stage, task.form), []).append(i)
        waiting = [task for task in tasks if task.exit < 0]
        run = self._best(groups, slack, waiting, now)
        tables = self.tables(run[0].form)
        after = now + slow.planned(tables.seconds(run[0].stage, sum(task.size for task in run)))
        inside = set(map(id, run))
        # Those that could not reach another exit after this stage are answered before it.
        lost = [task for task in tasks if task.exit >= 0 and id(task) not in inside and self._cannot_go_on(task, after)]
        return Decision(answer=lost) if lost else Decision(run=run)

    def _is_over(self, task: Task, now: float) -> bool:
        return task.exit >= 0 and (task.stage == self.tables(task.form).stages or self._cannot_go_on(task, now))

    def _cannot_go_on(self, task: Task, now: float) -> bool:
        return now + self.slow.planned(self.tables(task.form).next[task.stage]) > task.deadline

    def _plan(self, now: float) -> tuple[list[int], np.ndarray]:
        """The tasks that should go on, and for each task the time to spare at its deadline if all go as planned."""
        tasks, slow = self.tasks, self.slow
        if len(tasks) == 1:
            return [0], np.array([np.inf])
        left = np.array([task.deadline for task in tasks]) - now
        demand, base = self._demand(tasks)
        total = np.cumsum(demand, 0)
        # Planned at the 95th percentile: the deviations of many stages cancel, as in SlowDown.planned.
        total = slow.mean * total + (slow.high - slow.mean) * np.sqrt(total * demand[0, -1])
        fits = (total <= left[:, None]).sum(1) - 1
        prices, begin, spent = np.empty(len(tasks), int), 0, 0.0
        for block in range(4):
            end = begin + int(fits[begin:].argmin()) + 1 if block < 3 else len(tasks)
            price = max(int(fits[begin:end].min()), 0)
            prices[begin:end] = price
            if end == len(tasks):
                break
            # What comes after this group starts when it has ended.
            spent += total[end - 1, price] - (total[begin - 1, price] if begin else 0.0)
            more = total[end:] - total[end - 1] + spent
            fits[end:] = (more <= left[end:, None]).sum(1) - 1
            begin = end
        chosen = demand[np.arange(len(tasks)), prices]
        slack = np.minimum.accumulate(left - slow.mean * np.cumsum(chosen))
        planned = np.flatnonzero(chosen > base + 1e-12)
        if not len(planned):  # nobody's next way fits as a whole: go on with whoever can
            planned = np.arange(len(tasks))
        return planned.tolist(), slack

    def _demand(self, tasks: Sequence[Task]) -> tuple[np.ndarray, np.ndarray]:
        """Seconds that each task needs at each price, and at none."""
        level_of = min(self.usual, sum(task.size for task in tasks))
        demand, base = np.empty((len(tasks), PRICES)), np.empty(len(tasks))
        forms = {task.form for task in tasks}
        for form in forms:
            which = slice(None) if len(forms) == 1 else [i for i, task in enumerate(tasks) if task.form == form]
            mine = tasks if len(forms) == 1 else [task for task in tasks if task.form == form]
            tables = self.tables(form)
            level = tables.level(level_of)
            stages = [task.stage for task in mine]
            base[which] = tables.held[level][stages]
            demand[which] = tables.remaining[level][stages] + base[which][:, None]
            for row, task in enumerate(mine):
                if task.weight != 1.0:
                    place = row if len(forms) == 1 else which[row]  # type: ignore[index]
                    demand[place] = self._weighted(demand[place], task.weight, tables)
        sizes = [task.size for task in tasks]
        if max(sizes) > 1:
            demand *= np.array(sizes)[:, None]
            base *= sizes
        return demand, base

    def _weighted(self, row: np.ndarray, weight: float, tables: Tables) -> np.ndarray:
        """The demand of a task for which going on is worth less or more: as at another price."""
        step = log(tables.prices[0] / tables.prices[1])
        shift = round(log(max(weight, 1e-6)) / step)
        return row[np.clip(np.arange(PRICES) + shift, 0, PRICES - 1)]

    def _best(self, groups: dict[Any, list[int]], slack: np.ndarray, waiting: Sequence[Task], now: float) -> list[Task]:
        """The batch that gains most per second and leaves the plan of earlier deadlines and every first exit."""
        best, leader = None, None
        for (stage, form), members in groups.items():
            tables = self.tables(form)
            run = self._fill([self.tasks[i] for i in members])
            if leader is None or members[0] < leader[1]:
                leader = (run, members[0])
            size = sum(task.size for task in run)
            gain = tables.slopes[tables.level(size)][stage] * sum(task.weight * task.size for task in run)
            if best is not None and gain <= best[0]:
                continue
            seconds = self.slow.planned(tables.seconds(stage, size))
            if members[0] and slack[members[0] - 1] < seconds:
                continue
            if self._first_exits_fit(waiting, run, now + seconds):
                best = (gain, run)
        assert leader is not None
        if best is not None:
            return best[1]
        run = leader[0]
        while len(run) > 1 and run[0].exit >= 0 and not self._fits(run, waiting, now):
            run = run[: len(run) // 2]
        if run[0].exit >= 0 and not self._fits(run, waiting, now):
            first = [task for task in waiting if (task.stage, task.form) == (waiting[0].stage, waiting[0].form)]
            return self._fill(first)
        return run

    def _fits(self, run: list[Task], waiting: Sequence[Task], now: float) -> bool:
        size = sum(task.size for task in run)
        return self._first_exits_fit(
            waiting, run, now + self.slow.planned(self.tables(run[0].form).seconds(run[0].stage, size))
        )

    def _fill(self, tasks: list[Task]) -> list[Task]:
        """As many of the tasks, in their order, as the largest batch holds."""
        if len(tasks) <= self.largest and all(task.size == 1 for task in tasks):
            return tasks
        chosen, size = [], 0
        for task in tasks:
            if size + task.size <= self.largest:
                chosen.append(task)
                size += task.size
        return chosen

    def _first_exits_fit(self, waiting: Sequence[Task], run: list[Task], now: float) -> bool:
        """Whether those that wait for their first exit, and are not in this batch, will have it in time."""
        if run[0].exit < 0:
            inside = set(map(id, run))
            waiting = [task for task in waiting if id(task) not in inside]
        if not waiting:
            return True
        return fits_first(self.tables(waiting[0].form), self.slow, [(t.deadline, t.size) for t in waiting], now) <= 0


def fits_first(tables: Tables, slow: SlowDown | Pace, waiting: Sequence[tuple[float, int]], now: float) -> float:
    """By how many seconds the worst of the first exits would be late, earliest deadline first; at most 0 if none is.

    Args:
        tables: times of the stages.
        slow: how much slower the machine is now.
        waiting: deadline and number of samples of each, earliest deadline first.
        now: when the first of them could start.
    """
    deadlines = np.array([deadline for deadline, _ in waiting])
    samples = np.cumsum([size for _, size in waiting])
    work = tables.first_exits[np.minimum(samples, len(tables.first_exits)) - 1]
    longest = tables.first_exits[0]
    planned = slow.mean * work + (slow.high - slow.mean) * np.sqrt(work * longest)
    return float((planned + now - deadlines).max())
