"""What a server has learned and done before its first client."""

import asyncio

import anytime
from anytime.serving.audit import Auditing
from anytime.serving.booking import Route
from anytime.serving.embedded import FOLDER
from anytime.serving.engine import Engine
from anytime.serving.limits import Limits
from anytime.serving.rehearsal import rehearse
from anytime.serving.served import Served
from anytime.serving.service import Service


def rehearsed(route, make_engine, auditing=None):
    """A service after a rehearsal, and the times of that route."""

    async def run():
        served = Served("m", None, make_engine, auditing)
        service = Service({"m": served}, Limits())
        try:
            await served.warm_up()
            before = served.loaded.engine.stats()["answered"]
            await rehearse(service)
            answered = served.loaded.engine.stats()["answered"] - before
            await asyncio.sleep(0.05)  # what is counted is counted once the reply is on its way
            return service, service.work.routes[route], answered
        finally:
            served.loaded.engine.close(drain=False)

    return asyncio.run(run())


def test_the_loops_times_are_known_and_nothing_is_counted():
    auditing = Auditing(1.0)
    service, route, answered = rehearsed("predict", lambda: Engine(FOLDER, processes=0), auditing)
    assert answered > 1
    first = Route()
    assert route.take.at(0.0) != first.take.first
    assert route.reply.at(0.0) != first.reply.first
    assert service.work.turns.typical.at(0.0) != service.work.turns.typical.first
    assert not service.exchanges
    assert "anytime_requests_total{" not in service.metrics.text().decode()
    audit = service.models["m"].loaded.audit
    assert audit.monitor.report().seen == 0


def test_a_model_that_takes_numbers_is_rehearsed_by_the_protocol():
    net = anytime.create_model("resann-1-4", in_channels=1).eval()
    _, route, answered = rehearsed("infer", lambda: Engine(net, processes=0))
    assert answered > 1
    assert route.take.at(0.0) != Route().take.first
