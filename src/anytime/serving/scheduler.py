"""What to do at a stage boundary.

**Given** requests i = 1 … n in flight, in the order of their deadlines d_i, each after s_i stages; τ_k(b), the seconds
of stage k for a batch of b, as a distribution; a_e, the accuracy of exit e, which answers after its head.

**Wanted** at every stage boundary: which batch runs its next stage, and who is answered now, so that the sum of the
accuracies of all answers is largest and nobody who was admitted is late, but for one stage in twenty.

**Method** The plan is the lowest price λ, in accuracy per second, at which all are in time if each request takes the
ways that gain at least λ; where a group of early deadlines is what limits it, those after them have a lower price of
their own. Of the planned next stages the one runs that gains most per second, unless the plan of an earlier deadline or
a first exit would not survive it. Who cannot reach another exit after that stage is answered before it.

**Symbols**

| symbol | name | what it is |
|---|---|---|
| d_i, s_i, w_i | ``deadline``, ``stage``, ``weight`` | of a ``EngineTask``; w_i multiplies what going on gains |
| | ``position`` | stage and form: those at one position can share a batch; their queue has the earliest first |
| τ_k(b) | ``seconds`` | as measured when nothing else ran |
| | ``mean``, ``high``, ``safe`` | a second on the machine now: mean, 95th percentile, twice as far (``SlowDown``) |
| a_e | ``accuracy`` | of an exit, on held-out data; rising |
| | way, ``slope`` | from a stage to a deeper exit on the upper hull of accuracy over time; gain per second |
| | ``level`` | of a batch, by which slopes and seconds are tabulated |
| λ | ``price`` | a slope, as an index: 0 is infinite (first exits only), higher ones are lower prices |
| | ``shift`` | by how many prices the price of a request differs, for its weight w_i |
| N_i(λ) | ``needs`` | seconds of the ways that request i takes at a price, and of the head that answers |
| | row | one request if there are few, else a group with neighboring deadlines (``PlanRows``) |
| L_i | ``left`` | seconds to d_i, in those that were measured, less room for one long piece |
| | ``first``, ``later``, ``cut`` | the price up to the group that limits it, the price after it, the first task there |
| | ``slack`` | before each row, the least L_j - Σ N up to j: so long can the rows before it be put off |
| | ``delay`` | so long can the first exits of those that wait be put off |
| | ``reserved`` | seconds of the heads that answer earlier deadlines |

A price is feasible if Σ_{j ≤ i} N_j(λ) ≤ L_i for all i: earliest deadline first is in time if anything is.

**State that outlives a decision**

| name | why |
|---|---|
| ``flight`` | what is in flight, kept in order: sorting it at each decision would take longer than a stage |
| ``slow`` | how fast the machine is, which only stages that have run can tell |
| ``usual`` | the mean batch: the share of a batch's time that a request needs depends on the batches to come |
| ``_prices`` | where the search for the prices begins; what it finds does not depend on it |
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, compress, count
from math import inf
from operator import gt, not_, sub
from typing import NamedTuple

from anytime.serving.admission import worst_lateness
from anytime.serving.flight import EngineTask, Flight, PlanRows, Position, by_deadline, by_key
from anytime.serving.slowdown import SlowDown
from anytime.serving.ways import PRICES, Tables

TOGETHER = 4
"""Answers that are due within so many stages from now are given together."""

Positions = dict[Position, list[EngineTask]]
"""Tasks by position, at each the earliest deadline first."""


@dataclass(slots=True)
class Decision:
    """Tasks to answer now with the exit that they have, then the batch whose next stage runs."""

    answer: Sequence[EngineTask] = ()
    run: Sequence[EngineTask] = ()


class Plan(NamedTuple):
    """The tasks that go on, and how long other work can be put off."""

    going: Positions
    """Those whose next stage is planned."""
    resting: Positions
    """The other tasks."""
    slack: list[float]
    delay: float


class Scheduler:
    """Decides at every stage boundary. Knows times only as they are passed to it.

    Args:
        tables: by form: times and gains.
        largest: the largest batch.
    """

    def __init__(self, tables: Callable[[Hashable], Tables], largest: int) -> None:
        self.tables, self.largest = tables, largest
        self.flight, self.slow = Flight(tables), SlowDown()
        self.usual = 1.0
        """The running mean of the batches."""
        self._prices = 1, 1

    @property
    def tasks(self) -> list[EngineTask]:
        """Those in flight, earliest deadline first."""
        return self.flight.tasks

    def add(self, task: EngineTask) -> None:
        """Add a task."""
        self.flight.add(task)

    def remove(self, task: EngineTask) -> None:
        """Remove a task that is answered, failed or cancelled."""
        self.flight.remove(task)

    def ran(self, tasks: Sequence[EngineTask], seconds: float) -> None:
        """Move tasks on by the stage that they have been through, and learn from the seconds that it took."""
        tables, stage = self.tables(tasks[0].form), tasks[0].stage
        size = self.flight.samples(tasks)
        self.slow.note(tables.seconds(stage, size), seconds)
        self.usual += 0.1 * (size - self.usual)
        self.flight.move(tasks, tasks[0].exit + (tables.times.heads[stage] is not None))

    def decide(self, now: float) -> Decision:
        """Decide at a moment; an empty decision if no task is in flight."""
        flight = self.flight
        if not flight.tasks:
            return Decision()
        if len(flight.tasks) == 1:
            return self._alone(flight.tasks[0], now)
        level = self.tables(flight.tasks[0].form).level(min(self.usual, len(flight.tasks)))
        rows = flight.rows(level)
        over = self._stopping(rows, now, ())
        if over:
            return Decision(_in_order(over))
        plan = self._plan(rows, level, now)
        run, after = self._in_time(self._best(plan, rows, now), now)
        lost = self._stopping(rows, after, run)
        if not lost:
            return Decision(run=run)
        self._answered_together(plan, lost, after + TOGETHER * (after - now))
        return Decision(_in_order(lost), run if self._can_wait(rows, plan, run, after, now, lost) else ())

    def _alone(self, task: EngineTask, now: float) -> Decision:
        """Decide for a single task: go on as long as another exit is in time."""
        tables, stage = self.tables(task.form), task.stage
        if task.exit >= 0 and (stage == tables.stages or now + self.slow.safe * tables.next[stage] > task.deadline):
            return Decision(answer=[task])
        return Decision(run=[task])

    # Answers

    def _stopping(self, rows: PlanRows, now: float, running: Iterable[EngineTask]) -> Positions:
        """Tasks with an exit that cannot reach another one in time if nothing else happens before a moment.

        The answers of those with earlier deadlines come before their own; those at one position are given together.
        """
        flight, mean, safe, step = self.flight, self.slow.mean, self.slow.safe, rows.step
        known = {form: self.tables(form) for form in flight.forms}
        stopping, reach = Positions(), now
        for form, tables in known.items():
            reach = max(reach, now + safe * tables.longest_next)
            through = flight.queues.get((tables.stages, form))
            if through:
                stopping[tables.stages, form] = list(through)
        busy = None
        due = bisect_right(rows.deadlines, reach + mean * rows.reserved[-1])  # nobody after these is concerned
        for row, (deadline, reserved) in enumerate(zip(rows.deadlines[:due], rows.reserved[:due], strict=True)):
            if deadline > reach + mean * reserved:
                continue
            begin = now + mean * reserved
            for task in flight.tasks[row * step : (row + 1) * step]:
                if task.exit < 0:
                    continue
                tables, stage = known[task.form], task.stage
                if begin + safe * tables.next[stage] > task.deadline and stage < tables.stages:
                    busy = set(running) if busy is None else busy
                    if task not in busy:
                        stopping.setdefault(task.position, []).append(task)
        return stopping

    def _answered_together(self, plan: Plan, lost: Positions, until: float) -> None:
        """Add other tasks at the exits of those that are answered which are due soon and will not go deeper.

        One head for many costs little more than for one.
        """
        for position in lost if plan.going else ():
            resting = plan.resting.get(position, [])
            due = resting[: bisect_right(resting, until, key=by_deadline)]
            others = set(lost[position]).difference(due)
            lost[position] = sorted([*due, *others], key=by_key) if others else due

    def _can_wait(
        self, rows: PlanRows, plan: Plan, run: list[EngineTask], after: float, now: float, lost: Positions
    ) -> bool:
        """Whether a batch can run after some answers without another decision: nobody would be late."""
        heads = [(self.tables(form).answer[stage], tasks) for (stage, form), tasks in lost.items()]
        after += self.slow.safe * sum([head.at(self.flight.samples(tasks)) for head, tasks in heads])
        if run[0].exit >= 0 and after - now > plan.delay:
            return False
        tables, stage = self.tables(run[0].form), run[0].stage
        head = tables.answer[min(stage + 1, tables.stages)].at(self.flight.samples(run))
        if after + self.slow.mean * head > min([task.deadline for task in run]):
            return False
        return not self._stopping(rows, after, [*run, *(task for tasks in lost.values() for task in tasks)])

    # Prices and plan

    def _plan(self, rows: PlanRows, level: int, now: float) -> Plan:
        """The lowest prices at which all are in time."""
        tasks = self.flight.tasks
        # Planned at the 95th percentile: the mean, and room for the deviation of a longest piece.
        longest = max(
            [self.tables(t.form).needs_of(level, t.stage, t.shift)[-1] * t.size for t in (tasks[0], tasks[-1])]
        )
        scale = 1 / self.slow.mean
        gone = now * scale + (self.slow.high - self.slow.mean) * longest * scale
        left = [deadline * scale - gone for deadline in rows.deadlines]
        first, end = _lowest_price(rows.needs, left, self._prices[0])
        planned, later = rows.needs(first), first
        if end < len(left):
            spent, after = sum(planned[:end]), max(self._prices[1], first)
            later, _ = _lowest_price(lambda price: rows.needs(price)[end:], left[end:], after, spent)
            planned[end:] = rows.needs(later)[end:]
        self._prices = first, later
        slack = list(accumulate(map(sub, left, accumulate(planned)), min, initial=inf))
        cut = tasks[end * rows.step].key if end < len(left) else (inf, 0)
        return Plan(*self._divided(level, first, later, cut), slack, self._delay(rows, now))

    def _divided(self, level: int, first: int, later: int, cut: tuple[float, int]) -> tuple[Positions, Positions]:
        """Tasks that wait or take a way at their price, and the others. The price changes at the key ``cut``; positions
        are in the order of their deadlines.
        """
        going, resting = Positions(), Positions()
        for position, queue in self.flight.queues.items():
            stage, form = position
            tables = self.tables(form)
            least = tables.goes_from[level][stage]
            if stage < tables.first:
                going[position] = queue
                continue
            if tables.every:  # weights come from exits that were looked at
                goes = [_goes(first if task.key < cut else later, task.shift, least) for task in queue]
                on, off = list(compress(queue, goes)), list(compress(queue, map(not_, goes)))
            else:
                begin = 0 if first >= least else bisect_left(queue, cut, key=by_key) if later >= least else len(queue)
                on, off = queue[begin:], queue[:begin]
            if on:
                going[position] = on
            if off:
                resting[position] = off
        return _sorted(going), resting

    def _delay(self, rows: PlanRows, now: float) -> float:
        """By how long first exits can be put off; with room for a stage: admission counts with one that is running."""
        waiting = [
            (deadline, round(samples))
            for deadline, samples in zip(rows.deadlines, rows.waiting, strict=True)
            if samples
        ]
        if not waiting:
            return inf
        tables = self.tables(self._waiting_first().form)
        return -worst_lateness(tables, self.slow, waiting, now) - self.slow.high * tables.longest_stage.at(self.usual)

    def _waiting_first(self) -> EngineTask:
        """The task without an exit that has the earliest deadline."""
        return min([queue[0] for queue in self.flight.queues.values() if queue[0].exit < 0], key=by_key)

    # The batch

    def _best(self, plan: Plan, rows: PlanRows, now: float) -> list[EngineTask]:
        """The group that gains most per second, leaving the plan of earlier deadlines and every first exit."""
        # If no request can reach its next planned exit, any runs that can go on.
        groups = plan.going or _sorted(self.flight.queues)
        best, most, high = None, -1.0, self.slow.high
        for members in groups.values():
            task = members[0]
            tables = self.tables(task.form)
            # Every request gets a first exit, sooner or later, so the gain counted is that of the stages after it.
            stage, run = task.stage if task.exit >= 0 else tables.first, self._fill(members)
            gain, size = self._gain(tables, stage, run)
            if gain <= most:
                continue
            if task.exit >= 0 and (late := self._too_early(members, now)):
                run = self._fill(members[late:])
                gain, size = self._gain(tables, stage, run)
            if gain <= most:
                continue
            slack = plan.slack[self.flight.index(task) // rows.step] if plan.going else inf
            seconds = high * tables.seconds(task.stage, size)
            # The plan counts with each sample's share of a batch's time.
            if seconds <= slack * size and (task.exit < 0 or seconds <= plan.delay):
                best, most = run, gain
        if best is not None:
            return best
        if plan.delay < inf:  # too late for anything else
            return self._fill(self.flight.queues[self._waiting_first().position])
        return self._fill(next(iter(groups.values())))  # that of the earliest deadline

    def _gain(self, tables: Tables, stage: int, run: list[EngineTask]) -> tuple[float, int]:
        """Accuracy per second of the way of a batch from a stage, and its size."""
        size = self.flight.samples(run)
        worth = sum([task.weight * task.size for task in run]) if tables.every else size
        return tables.slopes[tables.levels[size]][stage] * worth, size

    def _too_early(self, tasks: list[EngineTask], now: float) -> int:
        """How many of a queue are due before the end of their way, if the others take it together; not the last one.

        The earlier a deadline, the sooner it is left out.
        """
        tables, stage = self.tables(tasks[0].form), tasks[0].stage
        mean, ways, size = self.slow.mean, tables.way_seconds, self.flight.samples(tasks)
        begin = 0
        if size == len(tasks) > self.largest:  # as long as a largest batch is left, all take equally long
            full = now + mean * ways[tables.level(self.largest)][stage] * self.largest
            begin = min(bisect_left(tasks, full, key=by_deadline), size - self.largest + 1)
            if begin <= size - self.largest:
                return begin
            size -= begin
        for i in range(begin, len(tasks)):
            batch = min(size, self.largest)
            if now + mean * ways[tables.level(batch)][stage] * batch <= tasks[i].deadline:
                return i
            size -= tasks[i].size
        return len(tasks) - 1

    def _fill(self, tasks: list[EngineTask]) -> list[EngineTask]:
        """As many of the tasks, in their order, as the largest batch holds."""
        if not self.flight.sized:
            return tasks[: self.largest]
        chosen, size = [], 0
        for task in tasks:
            if size + task.size <= self.largest:
                chosen.append(task)
                size += task.size
        return chosen

    def _in_time(self, run: list[EngineTask], now: float) -> tuple[list[EngineTask], float]:
        """The batch without those for which it would take too long, and when it ends.

        Tasks with an exit are left out; of tasks without one, the earliest deadlines run in a smaller batch.
        """
        tables, stage = self.tables(run[0].form), run[0].stage
        head = tables.times.heads[stage]
        while True:
            size = self.flight.samples(run)
            after = now + self.slow.safe * tables.seconds(stage, size)
            answered = after if head is None else after + self.slow.mean * head.at(size)
            enough = [task for task in run if task.deadline >= answered]
            if len(enough) == len(run) or len(run) == 1:
                return run, after
            if run[0].exit >= 0 and enough:
                run = enough
            elif run[0].deadline < now + self.slow.safe * tables.next[stage]:  # too late already
                return run, after
            else:
                run = run[: len(run) // 2]


def _sorted(positions: Positions) -> Positions:
    """By the earliest deadline of each position."""
    return dict(sorted(positions.items(), key=lambda item: item[1][0].key)) if len(positions) > 1 else positions


def _in_order(positions: Positions) -> list[EngineTask]:
    return list(chain.from_iterable(_sorted(positions).values()))


def _goes(price: int, shift: int, least: int) -> bool:
    """Whether a task takes a way at a price, of which it has a shifted one; the infinite price stays."""
    return price > 0 and min(max(price + shift, 1), PRICES - 1) >= least


def _lowest_price(
    needs: Callable[[int], list[float]], left: list[float], price: int, spent: float = 0.0
) -> tuple[int, int]:
    """The lowest price at which all rows are in time, and the end of the group that limits it.

    Args:
        needs: seconds of each row at a price.
        left: until each deadline.
        price: where to begin the search: that of the latest decision is seldom far.
        spent: seconds that are needed before the first row.
    """

    def first_late(price: int) -> int | None:
        totals = accumulate(needs(price), initial=spent)
        next(totals)
        return next(compress(count(), map(gt, totals, left)), None)

    late = first_late(price)
    if late is None:
        while price < PRICES - 1 and (late := first_late(price + 1)) is None:
            price += 1
    else:
        while price > 0 and (earlier := first_late(price - 1)) is not None:
            price, late = price - 1, earlier
        price = max(price - 1, 0)
    return price, len(left) if late is None else late + 1
