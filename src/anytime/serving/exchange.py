"""One request for predictions, from its arrival to its reply, and its place in the event loop's time."""

import asyncio
import secrets
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from typing import Any

from starlette.exceptions import HTTPException

from anytime.serving.admission import OverloadedError
from anytime.serving.booking import Route, Work
from anytime.serving.engine import Answer
from anytime.serving.served import Loaded

_prefix, _numbers = secrets.token_hex(4), count(1)


def new_id() -> str:
    """An ID for a request without one."""
    return f"{_prefix}-{next(_numbers)}"


LATE = "the deadline passed before the input was read"


@dataclass(eq=False)
class Exchange:
    """One request; all moments are those of ``time.perf_counter``."""

    route: str
    work: Work
    id: str = field(default_factory=new_id)
    """The ID with which the client may send a label later."""
    task: "asyncio.Task[Any] | None" = field(default_factory=asyncio.current_task)
    came: float = field(default_factory=perf_counter)
    """Arrival of its last byte, from which the deadline counts."""
    deadline: float | None = None
    """Seconds from then; None until it is known."""
    audited: bool = True
    """Whether it may be audited."""
    admitted: bool = False
    """Whether the engine has it."""
    threaded: bool = False
    """Whether part of its work ran in a thread."""
    model: str = ""
    outcome: str = "failed"
    exits: list[int] = field(default_factory=list)
    waited: bool = False
    """Whether an answer waited for the deadline."""
    seconds: float = 0.0
    """From its arrival to its reply."""
    ahead: float = 0.0
    """How long before the deadline the end of its reply was booked, at the latest."""
    _slot: tuple[float, float] | None = None
    _turn: float = 0.0
    _woke: float = 0.0

    async def begin(self, loaded: Loaded, due: float, waited: bool) -> None:
        """Wait for a turn of the event loop; raises at once if the reply would be late.

        Args:
            loaded: the model.
            due: the moment of the deadline, or a guess if it is not known yet.
            waited: whether this is its turn already.
        """
        if not waited:
            if self.deadline is not None:
                self.work.check(loaded.engine, self.learned, due)
            await self.work.turns.turn(due)
            if self.deadline is not None:
                self.work.check_turn(loaded.engine, self.learned, due)
        self._turn = perf_counter()
        if self.deadline is not None:
            self.until(self.deadline)

    def until(self, deadline: float) -> None:
        """Set the deadline, and book the reply's time before it."""
        self.deadline = deadline
        self.ahead = self.learned.ahead
        end = self.came + deadline - self.ahead
        self._slot = self.work.calendar.book(end, self.work.reply_seconds(self.learned, perf_counter()))

    @property
    def learned(self) -> Route:
        """What the event loop spends on requests of this route."""
        return self.work.routes[self.route]

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        assert self.deadline is not None
        left = self.came + self.deadline - perf_counter()
        if left <= 0:
            raise HTTPException(504, LATE)
        return left

    def admit(self, loaded: Loaded, x: Any, id: str = "", **options: Any) -> "asyncio.Future[Answer]":
        """Submit a sample to the engine with a deadline that leaves time for the reply; cancelling withdraws it.

        Args:
            loaded: the model.
            x: a batch of one.
            id: of the sample, if the request has several.
            options: of ``Engine.asubmit``.
        """
        assert self._slot is not None
        _ = self.left
        left = self._slot[0] - perf_counter()
        if left <= 0:
            raise OverloadedError("its reply would be late", -left)
        future = loaded.engine.asubmit(loaded.check_sample(x), deadline=left, **options)
        if not self.admitted and not self.threaded:
            now = perf_counter()
            self.learned.take.note(now - self._turn, now)
        self.admitted = True
        if loaded.audit is not None and self.audited and not options:  # streams do not leave early
            loaded.audit.follow(id or self.id, x, future)
        return future

    async def answered(self, answers: list[Answer]) -> None:
        """Wait for a turn to reply with these answers."""
        if self.deadline is not None:
            await self.work.turns.reply(self.came + self.deadline)
        self._woke = perf_counter()
        self.exits = [answer.exit for answer in answers]
        self.waited = any(answer.stopped_by == "deadline" for answer in answers)

    @property
    def elapsed(self) -> float:
        """Seconds since the request came."""
        return perf_counter() - self.came

    @property
    def late(self) -> float:
        """By how many seconds a reply at this moment is late; 0 if it is in time."""
        return 0.0 if self.deadline is None else max(0.0, self.elapsed - self.deadline)

    def replied(self) -> None:
        """Finish: the reply is written, or there will be none."""
        if self._slot is not None:
            self.work.calendar.free(self._slot)
            self._slot = None
        now = perf_counter()
        self.seconds = now - self.came
        if self.outcome != "answered":
            return
        self.learned.reply.note(now - self._woke, now)
        if self.late:
            self.outcome = "late"
        if self.waited and self.deadline is not None:
            self.learned.replied(self.deadline - self.seconds, self.ahead)
