"""What the report says of the paper's claims and of the plan's predictions."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_experiments import made_up

from experiments import EXPERIMENTS, load, planned
from experiments.claims import STATES, Claim, Measure, all_of, judge, not_tried, rows
from experiments.figures import _apart
from experiments.intervals import Interval, holm, power, smallest_effect
from experiments.records import COMMITTED, Records
from experiments.report import opening

RECORDS = Records.read(COMMITTED)
shares = st.floats(-1, 1, allow_nan=False)


@given(st.lists(shares, min_size=2, max_size=12), st.floats(-0.5, 0.5))
def test_a_claim_is_shown_contradicted_or_inconclusive_as_its_interval_lies(values, limit):
    interval, above = Interval.of(values), judge("", "", "", "", values, above=limit)
    expected = "shown" if interval.low > limit else "contradicted" if interval.high < limit else "inconclusive"
    near = min(abs(interval.low - limit), abs(interval.high - limit)) < 1e-9  # on the edge rounding decides
    assert above.status == expected or near
    opposite = {"shown": "contradicted", "contradicted": "shown", "inconclusive": "inconclusive"}
    assert judge("", "", "", "", values, below=limit).status == opposite[above.status]


def test_what_was_not_tried_or_has_one_seed_decides_nothing():
    assert judge("", "", "", "SVHN", []).status == "not tried"
    assert judge("", "", "", "SVHN", [0.5]).status == "inconclusive"


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["shown", "shown"], "shown"),
        (["shown", "inconclusive"], "inconclusive"),
        (["shown", "contradicted", "not tried"], "contradicted"),
        (["shown", "not tried"], "not tried"),
    ],
)
def test_claims_that_must_hold_together(states, expected):
    parts = [Claim("", "part", "", "", "1", state) for state in states]
    assert all_of("", "", "", "", parts).status == expected


def test_a_claim_has_one_row_with_a_line_for_each_setting():
    claims = [judge("Table a", "A < B", "2 %", where, [0.01, 0.011]) for where in ("SVHN", "CIFAR-10")]
    table = rows([*claims, not_tried("Table a", "A < B", "2 %", "ILSVRC")])
    assert len(table) == 1
    assert [line.split("**")[1] for line in table[0][-1].split("<br>")] == ["shown", "shown", "not tried"]


def test_a_measure_scales_mean_and_interval_alike():
    assert Measure("x", 10, 1).show([0.1, 0.3]) == "2.0 [−10.7, 14.7] x, n = 2"


@pytest.mark.parametrize("n", [3, 5, 10])
def test_the_smallest_effect_is_shown_four_times_of_five(n):
    draw = random.Random(n)
    values = [draw.gauss(0, 1) for _ in range(n)]
    effect = smallest_effect(values) / (math.sqrt(sum((v - sum(values) / n) ** 2 for v in values) / (n - 1)))
    trials = [Interval.of([draw.gauss(effect, 1) for _ in range(n)]) for _ in range(4000)]
    assert sum(each.sign == "positive" for each in trials) / 4000 == pytest.approx(0.8, abs=0.025)
    assert power(effect * math.sqrt(n), n) == pytest.approx(0.8, abs=1e-6)


def test_every_claim_of_the_paper_has_a_verdict_from_the_committed_records():
    sections = {name: load(name).show("laptop", RECORDS) for name in EXPERIMENTS if name not in ("extras", "heads")}
    claims = [claim for section in sections.values() for claim in section.claims]
    assert {claim.status for claim in claims} <= set(STATES)
    says = " ".join(claim.says for claim in claims)
    for words in (
        "CONST makes more errors than OPT",
        "LINEAR makes more errors than OPT",
        "AdaLoss is near OPT",
        "AdaLoss makes fewer errors than CONST at the end",
        "AdaLoss makes fewer errors than LINEAR at the end",
        "increases are even over depth",
        "a small network with AdaLoss",
        "its largest network early",
        "with AdaLoss than with CONST",
        "an EANN is near OPT",
        "than a linear ensemble",
        "the harder the data, the more weight",
        "with M workers sup C",
        "whatever the backbone",
    ):
        assert words in says
    text, table, *_ = opening(sections)
    assert f"{sum(claim.status == 'shown' for claim in claims)} shown" in text
    assert all(claim.says in table for claim in claims)


SEEDS = {"const": 0.10, "linear": 0.08, "adaloss": 0.06, "opt-15": 0.05}


def records_of(arms, error):
    """Made-up records of all runs of these arms; ``error``: of an arm, a scheme and a seed."""
    made = {}
    for arm in arms:
        for seed in range(arm.seeds):
            for scheme in arm.schemes:
                run, value = arm.run(scheme, seed), error(arm, scheme, seed)
                made[run.name] = made_up(run, lambda _, value=value: value)
    return Records(made)


def outcomes(records):
    section = planned.show("laptop", records)
    table = next(text for text in section.text if text.startswith("|  | predicted"))
    cells = [row.strip("| ").split(" | ") for row in table.splitlines()[2:]]
    return {(number, label): outcome for number, label, *_, outcome in cells}, " ".join(section.verdicts)


def test_the_plans_first_experiment_is_judged_as_the_plan_says():
    draw = random.Random(0)
    records = records_of([planned.CROPS], lambda _, scheme, seed: SEEDS[scheme] + 0.01 * seed + draw.gauss(0, 1e-4))
    found, said = outcomes(records)
    assert found["1a", "CIFAR-100 with crops: CONST − AdaLoss > 0 at end"] == "confirmed"
    assert found["1a", "CIFAR-100 with crops: AdaLoss − OPT > 0 at end"] == "confirmed"
    assert found["1b", "CIFAR-10, 1,500 images without crops: CONST − AdaLoss < 0 at end"] == "not finished"
    assert "because it memorizes: still possible" in said
    turned = {"const": 0.05, "linear": 0.05, "adaloss": 0.08, "opt-15": 0.06}
    records = records_of([planned.CROPS], lambda _, scheme, seed: turned[scheme] + 0.01 * seed + draw.gauss(0, 1e-4))
    found, said = outcomes(records)
    assert found["1a", "CIFAR-100 with crops: CONST − AdaLoss > 0 at end"] == "contradicted"
    assert found["1a", "CIFAR-100 with crops: AdaLoss − OPT > 0 at end"] == "confirmed"
    assert said.count("because it memorizes: dead") == 2  # CONST < AdaLoss; and OPT is not the best, CONST is


def test_one_seed_short_is_not_finished():
    records = records_of([planned.CROPS], lambda _, scheme, seed: SEEDS[scheme] + 0.01 * seed)
    del records[planned.CROPS.run("const", 4).name]
    found, _ = outcomes(records)
    assert found["1a", "CIFAR-100 with crops: CONST − AdaLoss > 0 at end"] == "not finished"


@pytest.mark.parametrize(("growth", "state"), [(0.01, "still possible"), (0.0, "dead"), (-0.01, "dead")])
def test_a_dose_is_judged_by_its_slope_and_a_slope_of_nothing_kills(growth, state):
    draw = random.Random(0)

    def error(arm, scheme, seed):
        doublings = math.log2(arm.recipe["epochs"] / 6)
        return 0.2 + 0.01 * seed + (0.01 + growth * doublings) * (scheme != "adaloss") + draw.gauss(0, 1e-4)

    found, said = outcomes(records_of(planned.SVHN.values(), error))
    outcome = found["3", "SVHN, 6, 12, 24, 48 epochs: slope of CONST − AdaLoss > 0 at end"]
    assert outcome.startswith({0.01: "confirmed", 0.0: "inconclusive; a tie", -0.01: "contradicted"}[growth])
    assert f"grow with training on SVHN: {state}." in said


def test_holm_counts_every_test_of_the_plan():
    """One test of 22 at p = 0.0036 is not significant; once nine others are, it is: 0.05/22 < 0.0036 < 0.05/13."""
    one = Interval.of([1.0, 1.3, 0.4, 1.2, 0.9])
    assert planned.PLANNED == 22
    assert not holm({"one": one}, planned.PLANNED)["one"]
    sure = Interval.of([1.0, 1.001, 0.999, 1.0, 1.0])
    assert holm({"one": one} | dict.fromkeys(range(9), sure), planned.PLANNED)["one"]


def test_the_planned_runs_are_those_of_the_plan():
    few, steps = planned.FEW.run("const", 0), planned.STEPS.run("linear", 0)
    assert (few.images, few.recipe["epochs"], few.recipe["batch_size"], few.recipe["pad"]) == (1500, 120, 60, 0)
    assert (steps.recipe["schedule"], steps.recipe["epochs"], planned.STEPS.seeds) == ("steps", 60, 5)
    assert planned.CROPS.run("adaloss", 0).recipe["pad"] == 4
    assert sorted(planned.SVHN) == [6, 12, 24, 48]
    assert sorted(planned.CIFAR) == [30, 60, 180]
    assert {arm.seeds for arm in planned.SVHN.values()} == {5}
    assert {arm.seeds for arm in (*planned.CIFAR.values(), planned.LONG)} == {3}
    assert {each.number for each in planned.PREDICTIONS} == {"1a", "1b", "2", "3", "4", "5"}
    assert replace(few, seed=1).name.endswith("no-crops-seed1")


def test_planned_records_have_the_plans_precision_and_a_commit():
    for arm in planned.ARMS:
        for scheme in arm.schemes:
            for seed in range(arm.seeds):
                record = RECORDS.find(arm.run(scheme, seed))
                if record and "commit" in record:
                    expected = "float32" if arm.data == "svhn" else "bfloat16"
                    assert record["versions"]["precision"] == expected
                    assert record["commit"]


@given(st.lists(st.floats(0, 3), min_size=1, max_size=20))
def test_points_are_moved_apart_and_keep_their_order(places):
    moved = _apart(sorted(places), 0.01)
    assert moved == sorted(moved)
    assert sum(moved) == pytest.approx(sum(places))
