"""Turns of the event loop, and the moments that are booked for replies."""

import asyncio
import itertools
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime.serving.admission import OverloadedError
from anytime.serving.booking import RESERVE, Calendar, Work
from anytime.serving.turns import REFUSED, Turns
from anytime.serving.typical import Typical

MOMENTS = st.floats(0, 100, allow_nan=False)


def turns_of(requests):
    """In which turn each of these ran, in order: (turn, name); all came in one read of the sockets."""

    async def run():
        moment = itertools.count()
        turns, ran = Turns(clock=lambda: float(next(moment))), []

        def begin(name):
            ran.append((turns.began, name))
            return not name.startswith("refused")

        turns.call(0.0, lambda: begin("the first"))
        for due, name in requests:
            turns.call(due, lambda name=name: begin(name))
        while turns.began is not None:
            await asyncio.sleep(0)
        return ran

    return asyncio.run(run())


@given(st.lists(MOMENTS, max_size=20))
def test_one_request_begins_in_a_turn_and_the_earliest_deadline_comes_first(deadlines):
    ran = turns_of([(due, str(due)) for due in deadlines])
    assert [name for _, name in ran] == ["the first", *map(str, sorted(deadlines))]
    turns = [turn for turn, _ in ran]
    assert len(set(turns)) == len(turns)


def test_replies_come_before_what_only_begins():
    async def run():
        turns, ran = Turns(), []

        async def wait(turn, due, name):
            await turn(due)
            ran.append(name)

        turns.call(0.0, lambda: True)
        wanted = [(turns.turn, 1.0, "begins"), (turns.reply, 9.0, "later"), (turns.reply, 5.0, "sooner")]
        # Another turn passes until the tasks run.
        await asyncio.gather(*(wait(*each) for each in [(turns.turn, 0.0, "first"), *wanted]))
        return ran

    assert asyncio.run(run()) == ["first", "sooner", "later", "begins"]


def test_what_is_refused_takes_no_turn():
    ran = turns_of([(float(i), f"refused {i}") for i in range(REFUSED + 2)] + [(100.0, "begins")])
    turns = [turn for turn, _ in ran[1:]]
    assert len(set(turns[:REFUSED])) == 1
    assert len(set(turns[REFUSED:])) == 1
    assert len(set(turns)) == 2


def test_the_last_ones_are_refused_as_soon_as_there_is_no_time_for_them():
    async def run():
        turns, ran = Turns(), []
        turns.call(0.0, lambda: True)

        def refuse(i):
            ran.append(f"refused {i}" if i >= 3 else "kept")
            return i >= 3

        for i in range(6):
            turns.call(float(i), lambda i=i: ran.append(i) or True, partial(refuse, i))
        while turns.began is not None:
            await asyncio.sleep(0)
        return ran

    assert asyncio.run(run()) == [0, "refused 5", "refused 4", "refused 3", "kept", 1, "kept", 2]


def test_what_is_read_while_the_loop_works_came_when_the_turn_began():
    async def run():
        clock = [10.0]
        turns = Turns(clock=lambda: clock[0])
        first = turns.mark()
        clock[0] = 11.0  # a second request was in the same read, behind the work for the first
        assert (first, turns.mark()) == (10.0, 10.0)
        while turns.began is not None:
            await asyncio.sleep(0)
        clock[0] = 20.0
        assert turns.mark() == 20.0  # it came to an idle loop

    asyncio.run(run())


@given(st.lists(st.tuples(MOMENTS, st.floats(0.01, 5)), max_size=30), st.data())
def test_replies_are_booked_as_late_as_possible_and_none_overlaps_another(wanted, data):
    calendar, slots = Calendar(), []
    for end, seconds in wanted:
        if slots and data.draw(st.booleans()):
            calendar.free(slots.pop())
        latest = calendar.latest(end, seconds)
        begun, ended = calendar.book(end, seconds)
        assert ended == latest <= end
        assert ended - begun == pytest.approx(seconds)
        assert ended == end or any(ended == other for other, _ in slots), "there is room behind it"
        slots.append((begun, ended))
    for (_, ended), (begun, _) in itertools.pairwise(sorted(slots)):
        assert ended <= begun + 1e-9


class Engine:
    """Would have a first exit after so many seconds for each sample."""

    def __init__(self, seconds):
        self.seconds = seconds

    def first_exit(self, more):
        return self.seconds * more


@given(st.floats(0.01, 1), st.integers(0, 200), st.sampled_from([1e-5, 0.001, 0.01]))
def test_of_a_burst_as_many_are_admitted_as_can_be_answered(deadline, count, each):
    """Each takes the loop w to begin, with a reserve, and r to reply, and the engine f: n · (max(w, f) + r) fit."""

    async def run():
        work, began = Work(), 0
        route = work.routes["predict"]
        work.turns.mark()
        now = asyncio.get_running_loop().time()
        due = now + 1000 + deadline  # far away: the clock goes on meanwhile
        work.calendar.book(now + 1000, 999.0)  # until then the loop is busy
        for _ in range(count):
            try:
                work.check(Engine(each), route, due)
            except OverloadedError:
                break
            work.turns.call(due, lambda: True)
            began += 1
        return began

    began, turns = asyncio.run(run()), Turns()
    most = (deadline + 1.0) / (max((1 + RESERVE) * turns.typical.first, each) + turns.typical_reply.first)
    assert began == count or began == pytest.approx(most, abs=12)


def test_while_no_engine_is_ready_clients_are_told_when_to_try_again():
    async def run():
        work = Work()
        work.turns.call(0.0, lambda: True)
        work.turns.call(0.0, lambda: True)  # waits
        work.check(Engine(float("inf")), work.routes["predict"], asyncio.get_running_loop().time() + 1000)

    with pytest.raises(OverloadedError, match="no engine process is ready") as refused:
        asyncio.run(run())
    assert refused.value.retry_after == 1.0


def test_an_idle_loop_tries_every_request():
    async def run():
        Work().check(Engine(1e9), Work().routes["predict"], asyncio.get_running_loop().time() + 0.01)

    asyncio.run(run())


def test_one_slow_moment_does_not_count_and_many_are_forgotten():
    typical = Typical(first=1.0)
    for i in range(64):
        typical.note(100.0 if i % 16 == 0 else 1.0, now=0.0)
    assert typical.at(0.0) == 1.0
    for _ in range(64):
        typical.note(100.0, now=0.0)
    assert typical.at(0.0) == 100.0
    assert typical.at(1000.0) == pytest.approx(1.0)


def test_that_it_is_quicker_than_assumed_is_not_forgotten():
    typical = Typical(first=1.0)
    for _ in range(32):
        typical.note(0.1, now=0.0)
    assert typical.at(1000.0) == pytest.approx(0.1)
