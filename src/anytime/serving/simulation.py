"""Engines under a load, simulated: their own decisions and admission, on a clock that the simulation sets."""

import random
from bisect import insort
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from anytime.serving.admission import lateness
from anytime.serving.flight import EngineTask
from anytime.serving.scheduler import Scheduler
from anytime.serving.slowdown import Ahead, Pace
from anytime.serving.ways import Tables


class Arrival(NamedTuple):
    """One request of a trace."""

    moment: float
    deadline: float
    """The moment at which its answer is needed."""


class SimulatedEngine:
    """One engine process. ``step`` makes one decision and spends its time.

    Args:
        tables: times and accuracy.
        noise: vary the time of every stage by a factor around 1.
    """

    def __init__(self, tables: Tables, noise: random.Random | None = None) -> None:
        self.tables, self.noise, self.now = tables, noise, 0.0
        self.scheduler = Scheduler(lambda _: tables, tables.largest)
        self.answers: dict[int, tuple[int, float]] = {}
        """The exit and the moment of each answer."""
        self.heard = Pace()

    def step(self) -> None:
        """Make one decision: give the answers that are due, then run a stage."""
        scheduler, tables = self.scheduler, self.tables
        decision = scheduler.decide(self.now)
        for stage in dict.fromkeys(task.stage for task in decision.answer):  # those at one exit together
            group = [task for task in decision.answer if task.stage == stage]
            self.now += tables.answer[stage].at(len(group))
            for task in group:
                self.answers[task.id] = task.exit, self.now
                scheduler.remove(task)
        if decision.run:
            seconds = tables.seconds(decision.run[0].stage, len(decision.run))
            seconds *= self.noise.lognormvariate(0, 0.1) if self.noise else 1.0
            self.now += seconds
            scheduler.ran(decision.run, seconds)
        slow = scheduler.slow
        self.heard = Pace(slow.mean, slow.high, scheduler.usual, self.now)

    def run_until(self, moment: float) -> None:
        """Run until a moment, or until no request is in flight."""
        while self.scheduler.tasks and self.now <= moment:
            self.step()
        if not self.scheduler.tasks and moment < inf:
            self.now = max(self.now, moment)

    def late_by(self, deadline: float, now: float, ahead: float) -> float:
        """By how many seconds the worst first exit would be late if one more request came."""
        waiting = [(task.deadline, task.size) for task in self.scheduler.tasks if task.exit < 0]
        insort(waiting, (deadline - ahead, 1))
        return lateness(self.tables, self.heard.at(now), waiting, now, busy=bool(self.scheduler.tasks))


def simulate(
    tables: Tables, trace: Sequence[Arrival], engines: int = 1, queue: int = 256, noise: random.Random | None = None
) -> list[tuple[int, float] | None]:
    """For each request the exit that answers it and the moment; None if it is refused.

    Args:
        tables: times and accuracy.
        trace: the requests, in the order of their arrival.
        engines: number of processes; a request goes to the one where the first exits are the least late.
        queue: number of requests that may be in flight.
        noise: vary the time of every stage by a factor around 1.
    """
    processes, ahead, refused = [SimulatedEngine(tables, noise) for _ in range(engines)], Ahead(), set[int]()
    for i, request in enumerate(trace):
        for engine in processes:
            engine.run_until(request.moment)
        late = [engine.late_by(request.deadline, request.moment, ahead.seconds) for engine in processes]
        best = min(range(engines), key=late.__getitem__)
        in_flight = sum(len(engine.scheduler.tasks) for engine in processes)
        if late[best] > 0 or in_flight >= queue:
            refused.add(i)
            continue
        processes[best].scheduler.add(EngineTask(i, request.deadline - ahead.seconds))
    for engine in processes:
        engine.run_until(inf)
    answers = {id: answer for engine in processes for id, answer in engine.answers.items()}
    return [answers.get(i) for i in range(len(trace))]


def poisson(rate: float, deadline: float, requests: int, seed: int = 0) -> list[Arrival]:
    """Requests at random moments, so many per second on average, each with the same time until its deadline."""
    draw, moment, trace = random.Random(seed), 0.0, []
    for _ in range(requests):
        moment += draw.expovariate(rate)
        trace.append(Arrival(moment, moment + deadline))
    return trace
