"""What is learned after deployment: false alarms are as rare as stated, and shifts are found."""

from math import log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import outputs

import anytime
from anytime.evaluation import Outputs
from anytime.inference import HeldOut, Monitor, Policy
from anytime.inference.monitoring import BETS, Evidence, interval, share_at_most
from anytime.inference.risk import control_risk

RUNS = 1000


def most(delta, runs=RUNS):
    """How many of the runs may alarm: a binomial number of them is above this with a chance of about 1 in 1,000."""
    return runs * delta + 3.1 * (runs * delta * (1 - delta)) ** 0.5


class Crowd:
    """``Evidence`` of many runs at once: the same recursion, a row for each run."""

    def __init__(self, runs, allowed, low=0.0):
        self.low, self.room, self.kept, self.count = low, allowed - low, 0.5, 0
        self.invested = np.full((runs, len(BETS)), 0.5 / len(BETS))
        self.peak = np.ones(runs)

    def note(self, values):
        self.invested *= 1 + BETS * ((values[:, None] - self.low) / self.room - 1)
        self.count += 1
        kept, self.kept = self.kept, 0.5 / (1 + log(1 + self.count))
        self.invested += (kept - self.kept) / len(BETS)
        np.maximum(self.peak, self.kept + self.invested.sum(1), out=self.peak)


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), max_size=60), st.floats(0.01, 0.5))
def test_a_crowd_is_many_of_the_same(values, allowed):
    one, crowd = Evidence([allowed], low=-1.0), Crowd(2, allowed, low=-1.0)
    for value in values:
        one.note([value])
        crowd.note(np.array([value, 0.0]))
    assert crowd.peak[0] == pytest.approx(one.peak)


@pytest.mark.parametrize("allowed", [0.02, 0.1])
def test_what_is_just_allowed_raises_an_alarm_with_probability_delta_at_most(allowed):
    draw, crowd = np.random.default_rng(0), Crowd(RUNS, allowed)
    for _ in range(3000):
        crowd.note((draw.random(RUNS) < allowed).astype(float))
    for delta in (0.05, 0.2):
        assert (crowd.peak >= 1 / delta).sum() <= most(delta)


def test_losses_that_are_just_promised_raise_an_alarm_with_probability_delta_at_most():
    draw, crowd = np.random.default_rng(1), Crowd(RUNS, 0.01, low=-1.0)
    for _ in range(3000):
        chance = draw.random(RUNS)
        crowd.note((chance < 0.04).astype(float) - (chance > 0.97))  # their mean is the promised 0.01
    for delta in (0.05, 0.2):
        assert (crowd.peak >= 1 / delta).sum() <= most(delta)


@pytest.mark.parametrize(("before", "after", "samples"), [(0, 0.15, 200), (1000, 0.15, 350), (1000, 0.4, 90)])
def test_a_shift_is_found_within_so_many_audited_samples(before, after, samples):
    """At most 4 % are allowed and 3 % differ; then ``after`` do. At 2 % audits, 350 samples are 17,500 requests."""
    draw, crowd = np.random.default_rng(2), Crowd(200, 0.04)
    for _ in range(before):
        crowd.note((draw.random(200) < 0.03).astype(float))
    early = (crowd.peak >= 20).sum()
    for _ in range(samples):
        crowd.note((draw.random(200) < after).astype(float))
    assert early <= most(0.05, 200)
    assert (crowd.peak >= 20).mean() >= 0.95


@settings(max_examples=50)
@given(st.integers(0, 400), st.integers(0, 400), st.integers(1, 400), st.sampled_from([0.01, 0.05, 0.3]))
def test_an_interval_contains_the_mean_of_what_was_seen_and_is_wider_for_smaller_delta(lost, won, same, delta):
    counts = {-1: won, 0: same, 1: lost}
    low, high = interval(counts, delta)
    assert -1 <= low <= (lost - won) / (lost + won + same) <= high <= 1
    wider = interval(counts, delta / 2)
    assert wider[0] <= low + 1e-9
    assert wider[1] >= high - 1e-9


def test_intervals_cover_at_all_times_with_probability_1_minus_delta():
    draw, delta, missed = np.random.default_rng(3), 0.1, 0
    for _ in range(RUNS // 4):
        ones = np.cumsum(draw.random(2000) < 0.05)
        for n in (5, 10, 20, 50, 100, 200, 500, 1000, 2000):
            low, high = interval({0: int(n - ones[n - 1]), 1: int(ones[n - 1])}, delta)
            if not low <= 0.05 <= high:
                missed += 1
                break
    assert missed <= most(delta, RUNS // 4)


@given(st.floats(0, 1), st.integers(1, 10_000), st.sampled_from([0.001, 0.05]))
def test_a_bound_of_a_share_is_above_it_and_falls_with_more_samples(share, samples, delta):
    bound = share_at_most(share, samples, delta)
    assert share <= bound <= 1
    assert share_at_most(share, 2 * samples, delta) <= bound + 1e-9


def monitored(seed, delta=0.1, labels=True):
    """A policy calibrated on half of what exits said, and the other half."""
    everything = outputs(seed, samples=6000)
    held_out = Outputs(everything.logits[:, :3000], everything.labels[:3000])
    if not labels:
        held_out = held_out._replace(labels=held_out.logits[-1].argmax(-1))
    policy = control_risk(held_out, [1.0, 2.0, 3.0, 4.0, 5.0], 0.05, 0.05)
    later = Outputs(everything.logits[:, 3000:], everything.labels[3000:])
    return Monitor(policy, delta), later


def watch(monitor, known):
    monitor.audit(known.logits, known.labels)
    for score in monitor.score(known.logits[0]):
        monitor.see(score)
    return monitor


def test_calibration_and_monitor_together_are_rarely_wrong():
    """New samples, each run with a calibration of its own: alarms and warnings, at 10 % each in 40 runs."""
    runs = [watch(*monitored(seed)) for seed in range(40)]
    assert sum(each.alarm is not None for each in runs) <= most(0.1, 40)
    assert sum(each.warning is not None for each in runs) <= most(0.1, 40)


@pytest.mark.parametrize("seed", range(5))
def test_exits_that_got_worse_raise_an_alarm_and_a_warning(seed):
    monitor, later = monitored(seed)
    assert watch(monitor, later._replace(logits=later.logits[:, :500], labels=later.labels[:500])).alarm is None
    noise = torch.randn(later.logits.shape, generator=torch.Generator().manual_seed(seed))
    watch(monitor, later._replace(logits=later.logits + 2 * noise))
    report = monitor.report()
    assert "calibrate again" in str(report.alarm)
    assert report.warning is not None
    assert report.evidence["inputs"] >= 1, "the first exit's scores alone are evidence enough"
    assert report.disagreement[0] > report.allowed or report.risk[0] > report.promised
    assert report.audited == 3500
    assert sum(report.shares) == pytest.approx(1)


def test_labels_alone_can_raise_the_alarm():
    """One early answer in ten is wrong where the last exit's is right; promised is one in twenty."""
    monitor, _ = monitored(0)
    for i in range(2000):
        monitor.label(early=int(i % 10 != 0), last=1, label=1)
    assert "labels" in str(monitor.alarm)
    assert monitor.report().risk[0] > 0.05


def test_a_promise_about_the_last_exits_answers_is_what_is_allowed():
    monitor = Monitor(monitored(0, labels=False)[0].policy)
    policy = monitor.policy
    assert monitor.allowed > policy.held_out.differ
    assert (
        Monitor(anytime.Policy.of({**vars(policy), "labels": False, "held_out": vars(policy.held_out)})).allowed == 0.05
    )


def test_a_policy_remembers_its_held_out_samples_when_it_is_saved(tmp_path):
    policy = monitored(3)[0].policy
    policy.save(tmp_path)
    assert Policy.load(tmp_path) == policy
    assert isinstance(Policy.load(tmp_path).held_out, HeldOut)


def test_a_policy_that_remembers_nothing_is_refused_with_the_call_that_works():
    policy = Policy("confidence", [0.9], [1.0, 1.0], costs=[1.0, 3.0], shares=[0.5, 0.5], budget=2.0)
    with pytest.raises(anytime.AnytimeError, match="calibrate"):
        Monitor(policy)
    with pytest.raises(anytime.AnytimeError, match="delta"):
        Monitor(monitored(0)[0].policy, delta=0)
