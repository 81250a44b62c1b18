"""Runs what the scheduler decides: batches that are joined and divided at every stage boundary."""

import time
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from math import isfinite, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anytime.inference.batch_times import BatchTimes, sample_form
from anytime.inference.policy import Policy, Scorer
from anytime.inputs import device_of
from anytime.network import clone_tensors, tensors_of
from anytime.serving.flight import EngineTask
from anytime.serving.scheduler import Decision, Scheduler
from anytime.serving.ways import Tables, make_tables

FORMS = 64
"""Number of input forms whose tables are cached: clients choose the shapes, and memory is finite."""


class Settings(NamedTuple):
    """A runner's settings."""

    times: BatchTimes
    accuracy: list[float]
    largest: int
    policy: Policy | None


class Event(NamedTuple):
    """News of a request."""

    id: int
    kind: str
    """``first`` (the stage before its first exit begins), ``exit`` (an answer on the way), ``done``, ``failed``."""
    exit: int = -1
    logits: Any = None
    stopped_by: str | None = None
    """Why it did not go on; the reason if it failed."""
    moment: float = 0.0
    score: float | None = None
    """The policy's score at the first exit, if there is a policy."""


class TaskBatch:
    """The state of tasks that ran a stage together, in the order of its rows."""

    def __init__(self, state: Any, tasks: Sequence[EngineTask]) -> None:
        self.state, self.tasks = state, tasks
        ends = accumulate(task.size for task in tasks)
        self.rows = {task.id: range(end - task.size, end) for task, end in zip(tasks, ends, strict=True)}

    def part(self, net: Any, chosen: list[EngineTask]) -> Any:
        """The state of some of its tasks, which are sorted by row."""
        chosen.sort(key=lambda task: self.rows[task.id].start)
        if len(chosen) == len(self.tasks):
            return self.state
        rows = [row for task in chosen for row in self.rows[task.id]]
        if isinstance(self.state, Tensor) and rows[-1] - rows[0] == len(rows) - 1:  # next to each other: no copy
            return self.state[rows[0] : rows[-1] + 1]
        return net.take(self.state, torch.tensor(rows, device=device_of(self.state)))


class Runner:
    """One network and the requests that are in flight on it.

    Args:
        net: the network, in eval mode.
        settings: its times, accuracy and policy.
        tell: called with news, as soon as there are some.
        clock: the time in seconds.
    """

    def __init__(
        self, net: Any, settings: Settings, tell: Callable[[list[Event]], object], clock: Any = time.perf_counter
    ) -> None:
        self.net, self.settings, self.tell, self.clock = net, settings, tell, clock
        self.exits: list[int | None] = net.stage_exits
        self.known: dict[Hashable, Tables] = {}
        self.scheduler = Scheduler(self._tables, settings.largest)
        self.by_id: dict[int, EngineTask] = {}
        self.news: list[Event] = []
        self.resume()

    def _tables(self, form: Hashable) -> Tables:
        return self.known[form]

    def _know(self, form: Hashable, x: Any, size: int) -> None:
        """Make the tables of a form; times of one that was not measured are scaled by its number of elements."""
        unused = [other for other in self.known if other not in self.scheduler.flight.forms]
        for other in unused[: max(len(self.known) + 1 - FORMS, 0)]:
            del self.known[other]
        settings, kind = self.settings, self.settings.times.kind
        elements = sum(tensor.numel() for tensor in tensors_of(x)) / size
        measured = sum(prod(shape) for _, shape in kind.inputs) if kind is not None else elements
        times = settings.times.scaled(elements / max(measured, 1))
        self.known[form] = make_tables(times, settings.accuracy, settings.largest, every=settings.policy is not None)

    def add(self, id: int, x: Any, deadline: float, streams: bool = False) -> None:
        """Add a request."""
        size = tensors_of(x)[0].shape[0]
        form = sample_form(x)
        if form in self.known:
            self.known[form] = self.known.pop(form)  # the latest used come last
        else:
            self._know(form, x, size)
        task = EngineTask(id, deadline, form, size, x=x, streams=streams)
        self.by_id[id] = task
        self.scheduler.add(task)

    def cancel(self, id: int) -> None:
        """Drop a request: its rows leave at this boundary."""
        if id in self.by_id:
            self._drop(self.by_id[id])

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight."""
        return not self.by_id

    def resume(self) -> None:
        """Start timing the next stage, with the work before it."""
        self.since = self.clock()

    def step(self) -> None:
        """Answer some requests, run one stage of others, or both. Call it in ``torch.inference_mode()``."""
        decision: Decision = self.scheduler.decide(self.clock())
        if decision.answer:
            self._answer(decision.answer)
        if decision.run:
            self._run(decision.run)
        self.flush()

    def flush(self) -> None:
        """Send the queued events; a lone ``first`` is held back: only the admission of other requests needs it."""
        if self.news and (len(self.by_id) > 1 or self.news[-1].kind != "first"):
            news, self.news = self.news, []
            self.tell(news)

    def _gathered(self, tasks: Sequence[EngineTask]) -> TaskBatch:
        """Merge the tasks' batches."""
        together = tasks[0].batch
        if together is not None and together.tasks == tasks:
            return together
        parts: dict[int, tuple[TaskBatch | None, list[EngineTask]]] = {}
        for task in tasks:
            batch = task.batch
            key = id(task) if batch is None else id(batch)
            parts.setdefault(key, (batch, []))[1].append(task)
        states, order = [], []
        for batch, chosen in parts.values():
            if batch is None:  # the input itself: a stage may work in place, and a retry needs it
                x = chosen[0].x
                if len(parts) == 1:
                    x = x.clone() if isinstance(x, Tensor) else clone_tensors(x)
                states.append(x)
            else:
                states.append(batch.part(self.net, chosen))
            order += chosen
        return TaskBatch(self.net.join(states), order)

    def _run(self, tasks: Sequence[EngineTask]) -> None:
        stage = tasks[0].stage
        if self.exits[stage] is None and tasks[0].exit >= 0:  # the stage may change what the latest exit looks at
            seen = self._evaluate([task for task in tasks if task.logits is None])
            if not seen:
                return
        if self.exits[stage] is not None and tasks[0].exit < 0:
            self.news += [Event(task.id, "first") for task in tasks]
            self.flush()
        try:
            batch = self._gathered(tasks)
            batch.state = self.net.run_stage(stage, batch.state)
        except Exception as error:
            self._failed(tasks, error)
            return
        begun, self.since = self.since, self.clock()
        self.scheduler.ran(tasks, self.since - begun)
        exit = self.exits[stage]
        for task in batch.tasks:
            task.batch = batch
            if exit is not None:
                task.logits = None
        if exit is not None:
            try:
                self._look(batch.tasks)
            except Exception as error:
                self._failed([task for task in batch.tasks if task.id in self.by_id], error)

    def _look(self, tasks: Sequence[EngineTask]) -> None:
        """Evaluate the exit just reached where a policy or stream needs it, and finish tasks that it is sure of."""
        policy = self.settings.policy
        wanted = list(tasks) if policy is not None else [task for task in tasks if task.streams]
        if not wanted or not self._evaluate(wanted):
            return
        moment = self.clock()
        for task in wanted:
            if task.streams and task.exit > task.shown:
                task.shown = task.exit
                self.news.append(Event(task.id, "exit", task.exit, task.logits, None, moment))
        if policy is not None and policy.score != "patience":
            scores = Scorer(policy.score, policy.temperatures).score(
                wanted[0].exit, torch.cat([task.logits for task in wanted])
            )
            sure = policy.leaves(wanted[0].exit, scores).split([task.size for task in wanted])
            for task, sure_of, score in zip(wanted, sure, scores.split([t.size for t in wanted]), strict=True):
                self._judged(task, bool(sure_of.all()), float(score.mean()))
        elif policy is not None:
            for task in wanted:
                task.scorer = task.scorer or Scorer(policy.score, policy.temperatures)
                score = task.scorer.score(task.exit, task.logits)
                self._judged(task, bool(policy.leaves(task.exit, score).all()), float(score.mean()))

    def _judged(self, task: EngineTask, sure: bool, score: float) -> None:
        if task.exit == 0:
            task.score = score
        # Streams go on until the deadline.
        if sure and not task.streams and task.exit < len(self.settings.accuracy) - 1:
            self._finish(task, "policy")
        elif self.settings.policy is not None and self.settings.policy.score == "confidence":
            # What is left to gain for this sample, compared with the average one at this exit.
            doubt, left = 1 - self._tables(task.form).accuracy[task.exit], 1 - score
            if isfinite(left):  # inputs too large for the network give NaN
                self.scheduler.flight.weigh(task, min(max(left / max(doubt, 1e-3), 0.1), 4.0))

    def _answer(self, tasks: Sequence[EngineTask]) -> None:
        begun = self.clock()
        for position in dict.fromkeys(task.position for task in tasks):  # earliest deadline first
            group = [task for task in tasks if task.position == position]
            if not self._evaluate([task for task in group if task.logits is None]):
                continue
            for task in group:
                self._finish(task, None if task.exit == len(self.settings.accuracy) - 1 else "deadline")
            self.flush()
        self.since += self.clock() - begun

    def _evaluate(self, tasks: Sequence[EngineTask]) -> bool:
        """Evaluate the latest exit of tasks that stand at the same stage; False if that failed."""
        if not tasks:
            return True
        try:
            batch = self._gathered(tasks)
            reached = self.net.exit_after(batch.tasks[0].stage - 1, batch.state)
            parts = reached().float().cpu().split([task.size for task in batch.tasks])
        except Exception as error:
            self._failed(tasks, error)
            return False
        for task, rows in zip(batch.tasks, parts, strict=True):
            task.logits = rows
        return True

    def _drop(self, task: EngineTask) -> None:
        del self.by_id[task.id]
        self.scheduler.remove(task)
        task.batch = None  # no reference cycle, so that its memory is freed at once
        self.known.pop((task.form[0], task.id) if isinstance(task.form, tuple) else None, None)  # if it ran alone

    def _finish(self, task: EngineTask, stopped_by: str | None) -> None:
        self._drop(task)
        self.news.append(Event(task.id, "done", task.exit, task.logits, stopped_by, self.clock(), task.score))

    def _failed(self, tasks: Sequence[EngineTask], error: Exception) -> None:
        """Handle an error: a single task fails; of a batch, every task starts again in a batch of its own."""
        for task in tasks:
            if len(tasks) == 1:
                self._drop(task)
                reason = f"{type(error).__name__}: {error}"
                self.news.append(Event(task.id, "failed", stopped_by=reason, moment=self.clock()))
            else:
                self.scheduler.remove(task)
                task.stage, task.exit = 0, -1
                task.batch = task.logits = task.scorer = None
                alone = (task.form, task.id)  # shares no batch from now on
                self.known[alone] = self.known[task.form]
                task.form = alone
                self.scheduler.add(task)
