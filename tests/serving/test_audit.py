"""Audits of answers that left early: chosen blindly, run when there is time, and never in anybody's way."""

import asyncio
import signal

import pytest
import torch
from waiting import until

import anytime
from anytime.inference import Monitor, Policy
from anytime.serving.audit import WAITING, Auditing

ALL = Auditing(share=1.0, delta=0.1)


@pytest.fixture(scope="module")
def calibrated(run_folder, tmp_path_factory):
    """A folder with a policy by which most samples leave early, and images with their labels."""
    net, data = anytime.load(run_folder), anytime.load_data("digits")
    folder = anytime.save(net, tmp_path_factory.mktemp("audited") / "digits")
    anytime.calibrate(net, data.batches(data.validation), budget=0.5).save(folder)
    return folder, data.normalize(data.test.pixels), data.test.labels


async def asked(engine, audit, xs):
    """Answers of an engine to samples that an audit follows, a few at a time."""
    answers = []
    for i, x in enumerate(xs.split(1)):
        future = engine.asubmit(x, deadline=60.0)
        audit.follow(str(i), x, future)
        answers.append(await future)
    return answers


async def done(audit, count):
    """Wait until so many samples were compared."""
    async with asyncio.timeout(60):
        while audit.monitor.report().audited < count:
            await asyncio.sleep(0.01)


def engine_of(folder, **options):
    return anytime.Engine(folder, processes=0, max_batch=8, **options)


def test_what_is_audited_is_what_all_exits_say(calibrated):
    folder, xs, labels = calibrated
    policy, xs, labels = Policy.load(folder), xs[:40], labels[:40]

    async def work():
        with engine_of(folder) as engine:
            audit = ALL.of(engine, "digits")
            answers = await asked(engine, audit, xs)
            await done(audit, len(xs))
            used = [audit.label(str(i), int(label)) for i, label in enumerate(labels)]
            again = audit.label("0", 1)
            return answers, audit.monitor.report(), used, again

    answers, report, used, again = asyncio.run(work())
    assert any(not answer.complete for answer in answers), "some leave early"
    with torch.inference_mode():
        outputs = torch.stack(anytime.load(folder).eval()(xs))
    direct = Monitor(policy, ALL.delta)
    direct.audit(outputs, labels)
    for score in direct.score(outputs[0]):
        direct.see(score)
    expected = direct.report()
    assert all(used)
    assert not again, "a label counts once"
    assert (report.seen, report.audited, report.labeled) == (40, 40, 40)
    assert report.disagreement == pytest.approx(expected.disagreement)
    assert report.risk == pytest.approx(expected.risk)
    assert report.evidence == pytest.approx(expected.evidence)


def test_a_label_may_come_before_the_audit_and_an_unknown_one_is_of_no_use(calibrated):
    folder, xs, _ = calibrated

    async def work():
        with engine_of(folder) as engine:
            audit = ALL.of(engine, "digits")
            future = engine.asubmit(xs[:1], deadline=60.0)
            audit.follow("a", xs[:1], future)
            await future
            known = [audit.label(id, 3) for id in ("a", "b")]
            await done(audit, 1)
            return known, audit.monitor.report().labeled

    assert asyncio.run(work()) == ([True, False], 1)


def test_an_engine_that_is_never_idle_audits_nothing_and_keeps_few_inputs(calibrated):
    folder, xs, _ = calibrated

    async def work():
        with engine_of(folder) as engine:
            audit = ALL.of(engine, "digits")
            engine.status = lambda: {"in_flight": 1}
            await asked(engine, audit, xs[:1].expand(WAITING + 20, -1, -1, -1))
            held = audit.monitor.report()
            del engine.status
            await done(audit, held.audited + 1)
            return held, audit.monitor.report()

    held, later = asyncio.run(work())
    assert held.seen == WAITING + 20
    assert later.audited > held.audited


def test_requests_that_fail_or_are_cancelled_hold_nobody_up(calibrated):
    folder, xs, _ = calibrated

    async def work():
        with engine_of(folder) as engine:
            audit = ALL.of(engine, "digits")
            futures = [engine.asubmit(x, deadline=60.0) for x in xs[:6].split(1)]
            for i, future in enumerate(futures):
                audit.follow(str(i), xs[i : i + 1], future)
            futures[0].cancel()
            futures[3].cancel()
            await asyncio.gather(*futures, return_exceptions=True)
            await done(audit, 4)
            return audit.monitor.report()

    report = asyncio.run(work())
    assert (report.seen, report.audited) == (4, 4)


def test_after_an_alarm_nothing_leaves_early_if_that_was_asked_for(calibrated):
    folder, xs, _ = calibrated
    auditing = Auditing(share=1.0, fall_back=True)

    async def work():
        with engine_of(folder) as engine:
            audit = auditing.of(engine, "digits")
            before = await asked(engine, audit, xs[:20])
            await done(audit, 20)
            while audit.monitor.alarm is None:
                audit._note(lambda: audit.monitor.compare(0, 1))
            after = await asked(engine, audit, xs[:20])
            await done(audit, audit.monitor.report().audited)
            return before, after, audit.fallen_back

    before, after, fallen_back = asyncio.run(work())
    assert any(answer.stopped_by == "policy" for answer in before)
    assert all(answer.complete for answer in after)
    assert all(answer.score is not None for answer in after), "inputs are watched as before"
    assert fallen_back


def test_a_model_without_a_policy_or_with_audits_switched_off_is_not_audited(run_folder, calibrated):
    with engine_of(run_folder) as engine:
        assert ALL.of(engine, "digits") is None
    with engine_of(calibrated[0]) as engine:
        assert Auditing(share=0.0).of(engine, "digits") is None
    with pytest.raises(anytime.AnytimeError, match="share"):
        Auditing(share=2.0)


def test_a_server_watches_its_model_takes_labels_and_warns_of_other_inputs(serve, calibrated):
    folder, xs, labels = calibrated

    def ask(client, x, id):
        reply = client.post("/predict?deadline=20s", json={"input": x.tolist()}, headers={"X-Request-Id": id})
        assert reply.status_code == 200, reply.text
        assert reply.json()["id"] == id
        return reply.json()

    with serve(folder, "--audit", "1", "--fall-back") as server, server.client() as client:

        def about():
            return client.get("/monitor").json()["models"]["digits"]

        for i, x in enumerate(xs[:60]):
            ask(client, x, f"r{i}")
        until(lambda: about()["audited"] == 60)
        sent = {"labels": [{"id": f"r{i}", "label": int(label)} for i, label in enumerate(labels[:60])]}
        assert client.post("/labels", json=sent).json() == {"received": 60, "used": 60}
        assert client.post("/labels", json=sent).json() == {"received": 60, "used": 0}
        assert client.post("/labels", json={"labels": [{"id": "r0"}]}).status_code == 400
        found = about()
        assert (found["alarm"], found["warning"], found["labeled"]) == (None, None, 60)
        assert found["disagreement"][0] <= found["allowed"]
        for i in range(400):
            ask(client, 8 * xs[i % 60], f"s{i}")
            if about()["warning"]:
                break
        assert about()["warning"]
        metrics = client.get("/metrics").text
        assert 'anytime_alarm{about="calibration",model="digits"} 1.0' in metrics
        assert 'anytime_audited_samples{model="digits",what="labels"} 60.0' in metrics
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    assert "digits: after" in server.log.read_text()
