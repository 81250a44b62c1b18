"""/labels and /monitor: true labels of answered requests, and the bounds of the live risk."""

from dataclasses import asdict
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from anytime.errors import AnytimeError
from anytime.serving.bodies import body_of
from anytime.serving.protocol import parse_json
from anytime.serving.replies import json_reply
from anytime.serving.served import Served
from anytime.serving.service import Service


class Label(msgspec.Struct, forbid_unknown_fields=True):
    """The true class of a request: its name or its index."""

    id: str
    label: str | int


class Labels(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON body."""

    labels: list[Label]


_decoder = msgspec.json.Decoder(Labels)


async def labels(request: Request) -> Response:
    """Take labels. Only audited requests use theirs, and clients cannot know which those are: send all."""
    service: Service = request.scope["service"]
    served = service.model(request.query_params.get("model"))
    async with body_of(request, service) as body:
        given = parse_json(_decoder, body).labels
    audit = served.loaded.audit
    numbers = [_number(served, each.label) for each in given]
    used = 0
    for each, number in zip(given, numbers, strict=True):
        used += audit is not None and audit.label(each.id, number)
    return json_reply({"received": len(given), "used": used})


def _number(served: Served, label: str | int) -> int:
    """The index of a class."""
    classes = served.loaded.classes
    if isinstance(label, int):
        return label
    if label not in classes:
        raise AnytimeError(f"unknown class {label[:40]!r}; classes of {served.name}: {', '.join(classes[:20])}")
    return classes.index(label)


async def monitor(request: Request) -> Response:
    """For every model, whether early exits still keep the promised risk."""
    service: Service = request.scope["service"]
    return json_reply({"models": {name: _about(served) for name, served in service.models.items()}})


def _about(served: Served) -> dict[str, Any]:
    audit, policy = served.loaded.audit, served.loaded.engine.model.policy
    if audit is None:
        if policy is None:
            why = "no sample leaves early: the model has no policy (anytime calibrate makes one)"
        elif policy.held_out is None:
            why = "its policy was calibrated by an older version: calibrate again"
        else:
            why = "audits are switched off (--audit 0)"
        return {"audited": None, "reason": why}
    report = audit.monitor.report()
    return {
        **asdict(report),
        "delta": audit.auditing.delta,
        "share": audit.auditing.share,
        "fallen_back": audit.fallen_back,
        "below": audit.monitor.held_out.below,
    }
