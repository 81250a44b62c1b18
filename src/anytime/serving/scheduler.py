"""What to do at a stage boundary: one decision, a function of the time and the requests in flight alone."""

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import Any

from anytime.serving.admission import fits_first
from anytime.serving.slowdown import SlowDown
from anytime.serving.tables import PRICES, Tables

TOGETHER = 4
"""Answers that are due within so many stages from now are given together."""

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
    shift: int = 0
    """The same in prices, see ``Tables.shift``."""
    work: Any = None
    """What the runner keeps of it: its input, batch and latest logits."""


@dataclass(slots=True)
class Decision:
    """What to do now: answer some tasks with the exit that they have, then run the next stage of others."""

    answer: Sequence[Task] = ()
    run: Sequence[Task] = ()


class Scheduler:
    """Decides at every stage boundary. Knows times only as they are passed to it.

    Each request is worth the accuracy of the exit that answers it. The plan for those in flight is found in the order
    of their deadlines, with the time that is left until each: the lowest common price, in accuracy per second, at which
    everybody is in time. Where a group of early deadlines is what limits it, those after them have a price of their
    own. Of the planned next stages the one runs that gains most per second, unless the plan of an earlier deadline
    would not survive it.

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
        self.forms: Counter[Hashable] = Counter()
        """How many tasks there are of each form."""
        self._through = False  # whether a task may have been through all stages
        self._sized = 0  # how many tasks have more than one sample
        self._delay = inf  # how long the first exits of those that wait could be put off at the latest decision
        self._resting: list[Task] = []  # those that the latest plan takes no further
        self._prices = [1, 1]  # the latest, of the first group of deadlines and of those after it

    def add(self, task: Task) -> None:
        """Take a task up."""
        insort(self.tasks, task, key=by_deadline)
        self.forms[task.form] += 1
        self._sized += task.size > 1

    def remove(self, task: Task) -> None:
        """Drop a task: it is answered, failed or cancelled."""
        self.tasks.remove(task)
        self.forms[task.form] -= 1
        if not self.forms[task.form]:
            del self.forms[task.form]
        self._sized -= task.size > 1

    def ran(self, tasks: Sequence[Task], seconds: float) -> None:
        """Learn from a stage that has run, before the tasks are moved on."""
        tables, stage = self.tables(tasks[0].form), tasks[0].stage
        size = len(tasks) if not self._sized else sum(task.size for task in tasks)
        self.slow.note(tables.seconds(stage, size), seconds)
        self.usual += 0.1 * (size - self.usual)
        self._through = self._through or stage + 1 == tables.stages

    def decide(self, now: float) -> Decision:
        """What to do at this moment; nothing if no task is in flight."""
        if not self.tasks:
            return Decision()
        if len(self.tasks) == 1:
            return self._alone(self.tasks[0], now)
        over = self._stopping(now, ())
        if over:
            return Decision(answer=over)
        run, after = self._in_time(self._choose(now), now)
        # Those that could not reach another exit after this stage are answered before it.
        lost = self._stopping(after, run)
        if lost:
            lost += self._answered_together(lost, after + TOGETHER * (after - now))
        return Decision(lost, run if not lost or self._can_wait(run, after, now, lost) else ())

    def _answered_together(self, lost: list[Task], until: float) -> list[Task]:
        """Others at the exits of those that are answered which are due soon and which the plan takes no further.

        One head for many costs little more than for one.
        """
        places = {(task.stage, task.form) for task in lost}
        due = self._resting[: bisect_right(self._resting, until, key=by_deadline)]
        return [task for task in due if (task.stage, task.form) in places and task not in lost]

    def _alone(self, task: Task, now: float) -> Decision:
        """What to do if there is one task only: go on as long as another exit is in time."""
        tables, stage = self.tables(task.form), task.stage
        self._through = False
        if task.exit >= 0 and (stage == tables.stages or now + self.slow.safe * tables.next[stage] > task.deadline):
            return Decision(answer=[task])
        return Decision(run=[task])

    def _can_wait(self, run: list[Task], after: float, now: float, lost: list[Task]) -> bool:
        """Whether a batch can run after some answers without another decision: nobody would be late."""
        heads = {(task.stage, task.form): self.tables(task.form).answer[task.stage] for task in lost}
        held = sum(line.fixed for line in heads.values())
        held += sum(heads[task.stage, task.form].each * task.size for task in lost)
        tables, stage = self.tables(run[0].form), run[0].stage
        after += self.slow.safe * held
        if run[0].exit >= 0 and after - now > self._delay:
            return False
        head = tables.answer[min(stage + 1, tables.stages)].at(sum([task.size for task in run]))
        in_time = after + self.slow.mean * head <= min([task.deadline for task in run])
        return in_time and not self._stopping(after, [*run, *lost])

    def _in_time(self, run: list[Task], now: float) -> tuple[list[Task], float]:
        """The batch without those for which it would take too long, and when it ends.

        Who has an exit is left out; of those without one, the earliest deadlines come first, in a smaller batch.
        """
        tables, stage = self.tables(run[0].form), run[0].stage
        head = tables.times.heads[stage]
        while True:
            size = sum([task.size for task in run])
            after = now + self.slow.safe * tables.seconds(stage, size)
            answered = after if head is None else after + self.slow.mean * head.at(size)
            enough = [task for task in run if task.deadline >= answered]
            if len(enough) == len(run) or len(run) == 1:
                return run, after
            if run[0].exit >= 0 and enough:
                run = enough
            elif run[0].deadline < now + self.slow.safe * tables.next[stage]:  # too late already: with the others
                return run, after
            else:
                run = run[: len(run) // 2]

    def _stopping(self, now: float, running: Sequence[Task]) -> list[Task]:
        """Tasks with an exit that cannot reach another one in time if nothing else happens before a moment."""
        stopping, reserved, mean, safe = [], 0.0, self.slow.mean, self.slow.safe
        known = {form: self.tables(form) for form in self.forms}
        # Nobody with a later deadline than this is concerned.
        longest, held = max([t.longest for t in known.values()]), max([t.most_held for t in known.values()])
        reach = now + safe * longest + mean * len(self.tasks) * held
        seen = set()
        for task in self.tasks:
            if task.deadline > reach and not self._through:
                break
            if task.exit < 0:
                continue
            tables, stage = known[task.form], task.stage
            late = now + mean * reserved + safe * tables.next[stage] > task.deadline
            if stage == tables.stages or (late and task not in running):
                stopping.append(task)
            # The answers of those with earlier deadlines come before its own; those at one exit are given together.
            fixed, each = tables.answer[stage]
            reserved += each * task.size
            if stage not in seen:
                seen.add(stage)
                reserved += fixed
        self._through = False
        return stopping

    def _rows(self) -> list[list[float]]:
        """What each task needs at each price, in seconds."""
        batch = min(self.usual, len(self.tasks))
        if len(self.forms) == 1:
            tables = self.tables(self.tasks[0].form)
            level = tables.level(batch)
            plain = tables.demand(level)
            rows = [
                plain[task.stage] if not task.shift else tables.demand(level, task.shift)[task.stage]
                for task in self.tasks
            ]
        else:
            every = [(self.tables(task.form), task) for task in self.tasks]
            rows = [tables.demand(tables.level(batch), task.shift)[task.stage] for tables, task in every]
        if self._sized:
            rows = [[seconds * task.size for seconds in row] for row, task in zip(rows, self.tasks, strict=True)]
        return rows

    def _choose(self, now: float) -> list[Task]:
        """The batch whose next stage runs."""
        tasks = self.tasks
        rows = self._rows()
        # Planned at the 95th percentile: the mean, and room for the deviation of a longest piece.
        scale = 1 / self.slow.mean
        room = (self.slow.high - self.slow.mean) * max(rows[0][-1], rows[-1][-1]) * scale
        gone = now * scale + room
        left = [task.deadline * scale - gone for task in tasks]
        first, end, spent = _price(rows, left, 0, 0.0, self._prices[0])
        later = _price(rows, left, end, spent, max(self._prices[1], first))[0] if end < len(tasks) else first
        self._prices = [first, later]
        groups: dict[Any, list[Task]] = {}
        resting = self._resting = list[Task]()
        spare: dict[Any, float] = {}
        total, least, single = 0.0, inf, len(self.forms) == 1
        for i, (task, row, time_left) in enumerate(zip(tasks, rows, left, strict=True)):
            needed = row[first if i < end else later]
            if needed > row[0] or task.exit < 0:
                key = task.stage if single else (task.stage, task.form)
                members = groups.get(key)
                if members is None:
                    groups[key], spare[key] = [task], least
                else:
                    members.append(task)
            else:
                resting.append(task)
            total += needed
            if time_left - total < least:
                least = time_left - total
        if not groups:  # no request can reach its next planned exit: run any that can go on
            resting.clear()
            for task in tasks:
                key = task.stage if single else (task.stage, task.form)
                groups.setdefault(key, []).append(task)
            spare = dict.fromkeys(groups, inf)
        return self._best(groups, spare, now)

    def _best(self, groups: dict[Any, list[Task]], spare: dict[Any, float], now: float) -> list[Task]:
        """The group that gains most per second, leaving the plan of earlier deadlines and every first exit."""
        waiting = [task for task in self.tasks if task.exit < 0]
        delay = inf
        if waiting:
            tables, entries = self.tables(waiting[0].form), [(task.deadline, task.size) for task in waiting]
            # With room for a stage: admission counts with one that is running.
            delay = -fits_first(tables, self.slow, entries, now) - self.slow.high * tables.longest_stage.at(self.usual)
        self._delay = delay
        best, most, high = None, -1.0, self.slow.high
        for key, members in groups.items():
            task = members[0]
            tables = self.tables(task.form)
            # Every request gets a first exit, sooner or later, so the gain counted is that of the stages after it.
            stage, run = task.stage if task.exit >= 0 else tables.first, self._fill(members)
            gain, size = self._gain(tables, stage, run)
            if gain > most and task.exit >= 0 and len(reaching := self._reaching(members, now)) < len(members):
                run = self._fill(reaching)
                gain, size = self._gain(tables, stage, run)
            if gain <= most:
                continue
            seconds = high * tables.seconds(task.stage, size)
            # The plan counts with each sample's share of a batch's time.
            if seconds <= spare[key] * size and (task.exit < 0 or seconds <= delay):
                best, most = run, gain
        if best is not None:
            return best
        if waiting and delay < inf:  # too late for anything else
            first = waiting[0]
            return self._fill([task for task in waiting if (task.stage, task.form) == (first.stage, first.form)])
        return self._fill(next(iter(groups.values())))  # that of the earliest deadline

    def _gain(self, tables: Tables, stage: int, run: list[Task]) -> tuple[float, int]:
        """Accuracy per second of the way of a batch from a stage, and its size."""
        size = len(run) if not self._sized else sum([task.size for task in run])
        # Weights come from exits that were looked at.
        worth = sum([task.weight * task.size for task in run]) if tables.every else size
        return tables.slopes[tables.level(size)][stage] * worth, size

    def _reaching(self, tasks: list[Task], now: float) -> list[Task]:
        """Those that would reach the end of their way in time together; the earlier a deadline, the sooner it is left
        out. The last one in any case.
        """
        tables, stage = self.tables(tasks[0].form), tasks[0].stage
        size = sum([task.size for task in tasks]) if self._sized else len(tasks)
        for i, task in enumerate(tasks):
            batch = min(size, self.largest)
            if now + self.slow.mean * tables.ways[tables.level(batch)][stage] * batch <= task.deadline:
                return tasks[i:]
            size -= task.size
        return tasks[-1:]

    def _fill(self, tasks: list[Task]) -> list[Task]:
        """As many of the tasks, in their order, as the largest batch holds."""
        if not self._sized:
            return tasks[: self.largest]
        chosen, size = [], 0
        for task in tasks:
            if size + task.size <= self.largest:
                chosen.append(task)
                size += task.size
        return chosen


def _price(rows: list[list[float]], left: list[float], begin: int, spent: float, price: int) -> tuple[int, int, float]:
    """The lowest price at which the tasks from one on are all in time.

    Returns it, the end of the group that a lower one would make late, and the seconds spent by then.

    Args:
        rows: what each task needs at each price.
        left: until each deadline.
        begin: the first task.
        spent: what those before it need.
        price: where to begin the search: the price of the latest decision is seldom far.
    """
    pairs = list(zip(rows[begin:], left[begin:], strict=True))

    def fails_at(price: int) -> int | None:
        total = spent
        for i, (row, time_left) in enumerate(pairs):
            total += row[price]
            if total > time_left:
                return begin + i
        return None

    end = fails_at(price)
    if end is None:
        while price < PRICES - 1 and (end := fails_at(price + 1)) is None:
            price += 1
    else:
        while price > 0 and (late := fails_at(price - 1)) is not None:
            price, end = price - 1, late
        price = max(price - 1, 0)
    end = len(rows) if end is None else end + 1
    return price, end, spent + sum([row[price] for row in rows[begin:end]])
