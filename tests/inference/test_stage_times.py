"""Laws of the deadlines that predictions plan with: by a fake clock, and on recorded times of real stages."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytime.inference.stage_times import StageTimes

EXITS = 12
STAGE = 0.001
seconds = st.floats(0.2 * STAGE, 8 * STAGE)


def walk(known, times, deadline, confidence, head=0.0002, learn=True, begun=0.0):
    """The exit that a prediction with such stage times answers with, and whether it is late."""
    now, since, risk, ran = begun, 0.0, 0.0, []
    for stage, took in enumerate(times):
        if stage:
            ahead = known.pace * known.ahead(stage - 1, times[stage - 1])
            chance = known.late(ahead, deadline - (now - begun) - known.returning, since, now)
            if not known.allows(chance, 1 - confidence):
                stage -= 1
                break
            risk += chance
        ran.append((now, now + took, True))
        since = known.ran(ran, since, stage) if learn else since + took
        now += took
    late = now - begun + head > deadline
    if learn:
        known.head_ran(stage, head)
        known.walked(stage + 1)
        known.answered(late and stage > 0, risk, 1 - confidence)
    return stage, late


def after(history, deadline=6 * STAGE):
    """What is known after some predictions."""
    known = StageTimes([STAGE] * EXITS, [0.0002] * EXITS)
    for times in history:
        walk(known, times, deadline, 0.99)
    return known


histories = st.lists(st.lists(seconds, min_size=EXITS, max_size=EXITS), max_size=30)


@given(history=histories, deadline=st.floats(0, 20 * STAGE), confidences=st.tuples(*[st.floats(0.5, 0.999)] * 2))
def test_a_higher_confidence_never_goes_deeper(history, deadline, confidences):
    known, times = after(history), [STAGE] * EXITS
    lower, higher = (walk(known, times, deadline, c, learn=False)[0] for c in sorted(confidences))
    assert higher <= lower


@given(history=histories, deadlines=st.tuples(*[st.floats(0, 20 * STAGE)] * 2))
def test_a_longer_deadline_never_goes_shallower(history, deadlines):
    known, times = after(history), [STAGE] * EXITS
    shorter, longer = (walk(known, times, d, 0.99, learn=False)[0] for d in sorted(deadlines))
    assert shorter <= longer


@given(deadline=st.floats(1.3 * STAGE, 20 * STAGE), stage=st.floats(0.5 * STAGE, STAGE))
def test_with_constant_times_the_deadline_is_used_to_the_full(deadline, stage):
    known = StageTimes([stage] * EXITS, [0.0002] * EXITS)
    for _ in range(20):
        exit, late = walk(known, [stage] * EXITS, deadline, 0.99)
    assert not late
    room = deadline - known.returning - 0.0002 - 1e-9
    assert exit >= min(EXITS, int(room / (1.006 * stage))) - 1


@settings(max_examples=10)
@given(slow=st.floats(1.5, 20), predictions=st.integers(1, 100))
def test_it_recovers_from_a_slow_phase(slow, predictions):
    """Within 1,000 predictions it is as deep as before; within about 200 after most."""
    deadline, quick = 6.5 * STAGE, [STAGE] * EXITS
    known = StageTimes(quick, [0.0002] * EXITS)
    before, _ = walk(known, quick, deadline, 0.99)
    for _ in range(predictions):
        walk(known, [slow * STAGE] * EXITS, deadline, 0.99)
    for _ in range(1000):
        again, late = walk(known, quick, deadline, 0.99)
    assert (again, late) == (before, False)


@given(cold=st.floats(1.5, 20))
def test_cold_heads_say_nothing_of_warm_ones(cold):
    """Times that were taken over from a rested network do not keep a warm one from the exits that it can reach."""
    rested = StageTimes([STAGE] * EXITS, [cold * STAGE] * EXITS)
    known = StageTimes()
    known.begin_with(rested)
    for _ in range(30):
        exit, late = walk(known, [STAGE] * EXITS, 6.5 * STAGE, 0.99, head=0.1 * STAGE)
    assert (exit, late) == (5, False)


TRACES = np.load(Path(__file__).with_name("stage_traces.npz"))
"""Recorded microseconds of resann-9-16's 27 stages and, last, of a head: one row a prediction, 500 in a row (400 with
ONNX Runtime), on a two-core machine that was in use. Quiet: pinned to a core with real-time priority. Busy: beside
a process per core that never sleeps, and some other work."""


def replayed(name, share, confidence=0.99, warmup=100):
    """Share in time, mean exit, mean exit in hindsight and share of rows with any exit in time, after a warm-up."""
    rows = TRACES[name] * 1e-6
    deadline = share * np.median(rows[:, :-1].sum(1))
    known, found = StageTimes(), []
    for row in rows:
        exit, late = walk(known, row[:-1], deadline, confidence, head=row[-1])
        reachable = int((np.cumsum(row[:-1]) + row[-1] <= deadline).sum())
        found.append((not late, exit + 1, reachable, reachable > 0))
    return np.array(found[warmup:]).mean(0)


@pytest.mark.parametrize("name", ["quiet", "quiet_30hz"])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 1.0, 1.5])
def test_recorded_quiet_machine(name, share):
    in_time, exits, hindsight, _ = replayed(name, share)
    assert in_time >= 0.99
    assert exits >= (0.65 if share < 0.5 else 0.8) * hindsight


@pytest.mark.parametrize("name", ["busy_30hz", "busy_onnx_30hz"])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 1.0])
def test_recorded_busy_machine(name, share):
    """As many are in time as were possible, to within three points; a lower confidence goes deeper."""
    in_time, exits, _, possible = replayed(name, share)
    assert in_time >= possible - 0.03
    assert replayed(name, share, confidence=0.8)[1] > exits
