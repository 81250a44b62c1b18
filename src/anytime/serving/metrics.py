"""Prometheus metrics at /metrics."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import inf
from typing import Any

from anytime.errors import require
from anytime.serving.exchange import Exchange
from anytime.serving.served import Served

prometheus: Any = require("prometheus_client", "serve")
_families: Any = require("prometheus_client.core", "serve")

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds."""

CONTENT_TYPE: str = prometheus.CONTENT_TYPE_LATEST

prometheus.disable_created_metrics()  # a second series for each counter


class Metrics:
    """Counters of one server.

    Outcomes of a request: ``answered``, ``late`` (answered after its deadline), ``refused`` (503: not admitted),
    ``invalid`` (the client's mistake), ``gone`` (the client disconnected), ``failed``.
    """

    def __init__(self, models: Mapping[str, Served]) -> None:
        self.registry = prometheus.CollectorRegistry()
        common = {"registry": self.registry}
        self.requests = prometheus.Counter(
            "anytime_requests", "Requests for predictions.", ["model", "route", "outcome"], **common
        )
        self.exits = prometheus.Counter(
            "anytime_answers", "Answers by the exit that gave them; 0 is the shallowest.", ["model", "exit"], **common
        )
        self.seconds = prometheus.Histogram(
            "anytime_request_seconds", "Seconds from the request to its answer.", ["model", "route"],
            buckets=BUCKETS, **common,
        )  # fmt: skip
        self.lateness = prometheus.Histogram(
            "anytime_lateness_seconds", "Seconds from the deadline to the reply; 0 for replies in time.",
            ["model", "route"], buckets=(0.0, *BUCKETS), **common,
        )  # fmt: skip
        self.active = prometheus.Gauge("anytime_active_requests", "Requests that are not answered yet.", **common)
        self.streams = prometheus.Gauge("anytime_streams", "Open streams.", **common)
        self.registry.register(_Engines(models, self))
        # Cached: the lookup takes longer than everything else about a refusal.
        self._requests, self._exits, self._seconds, self._lateness = (
            lru_cache(1024)(family.labels) for family in (self.requests, self.exits, self.seconds, self.lateness)
        )

    def count(self, exchange: Exchange) -> None:
        """Count the outcome of a request."""
        model, route = exchange.model, exchange.route
        self._requests(model, route, exchange.outcome).inc()
        if exchange.outcome in ("answered", "late"):
            self._seconds(model, route).observe(exchange.seconds)
            self._lateness(model, route).observe(max(0.0, exchange.seconds - (exchange.deadline or inf)))
            for exit in exchange.exits:
                self._exits(model, exit).inc()

    def refused(self, model: str, route: str) -> None:
        """Count a request that was refused as soon as it was read."""
        self._requests(model, route, "refused").inc()

    def in_time(self, model: str) -> float:
        """Share of a model's answers that came before their deadlines; 1 if there are none."""
        counts = {"answered": 0.0, "late": 0.0}
        for sample in next(iter(self.requests.collect())).samples:
            if sample.name.endswith("_total") and sample.labels["model"] == model:
                counts[sample.labels["outcome"]] = counts.get(sample.labels["outcome"], 0.0) + sample.value
        total = counts["answered"] + counts["late"]
        return counts["answered"] / total if total else 1.0

    def text(self) -> bytes:
        """All metrics in the text format."""
        return prometheus.generate_latest(self.registry)


class _Engines:
    """Gauges of the engines, read when metrics are collected."""

    def __init__(self, models: Mapping[str, Served], metrics: Metrics) -> None:
        self.models, self.metrics = models, metrics

    def collect(self) -> Iterable[Any]:
        share = _families.GaugeMetricFamily(
            "anytime_in_time_ratio", "Share of answers before their deadlines.", labels=["model"]
        )
        gauges = {
            key: _families.GaugeMetricFamily(f"anytime_engine_{name}", text, labels=["model"])
            for key, (name, text) in _GAUGES.items()
        }
        for name, served in self.models.items():
            share.add_metric([name], self.metrics.in_time(name))
            stats = served.loaded.engine.stats()
            for key, gauge in gauges.items():
                gauge.add_metric([name], stats[key])
        return [share, *gauges.values(), *self._audits()]

    def _audits(self) -> list[Any]:
        """Metrics of the audits of early exits."""
        found = {
            name: _families.GaugeMetricFamily(f"anytime_{name}", text, labels=["model", *labels])
            for name, (text, labels) in _AUDITS.items()
        }
        for model, served in self.models.items():
            if (audit := served.loaded.audit) is None:
                continue
            report = audit.monitor.report()
            bounds = {
                "disagreement": (*report.disagreement, report.allowed),
                "early_disagreement": (*report.early, report.early_allowed),
                "lost": (*report.risk, report.promised),
            }
            for name, each in bounds.items():
                for bound, value in zip(("lower", "upper", "allowed"), each, strict=True):
                    if value is not None:
                        found[f"{name}_ratio"].add_metric([model, bound], value)
            for name, value in (("inputs", report.seen), ("answers", report.audited), ("labels", report.labeled)):
                found["audited_samples"].add_metric([model, name], value)
            for name, value in report.evidence.items():
                found["evidence_ratio"].add_metric([model, name], value)
            found["alarm"].add_metric([model, "promise"], report.alarm is not None)
            found["alarm"].add_metric([model, "calibration"], report.warning is not None)
            found["fallen_back"].add_metric([model], audit.fallen_back)
        return list(found.values())


_AUDITS = {
    "audited_samples": ("Samples whose first exit's score, early and last answer, or label was noted.", ["what"]),
    "disagreement_ratio": (
        "Share of samples answered otherwise than by the last exit.",
        ["bound"],
    ),
    "early_disagreement_ratio": ("The same share of the samples that left early.", ["bound"]),
    "lost_ratio": ("Accuracy lost by leaving early, of samples with labels.", ["bound"]),
    "evidence_ratio": ("Evidence for a shift, divided by what raises the alarm or warning.", ["test"]),
    "alarm": ("1 once the promise no longer holds, or samples are unlike the calibration's.", ["about"]),
    "fallen_back": ("1 once no sample leaves early any more, after an alarm.", []),
}
"""By its name after ``anytime_``: what it is, and its labels besides the model."""

_GAUGES = {
    "in_flight": ("queue_length", "Requests that are admitted and not answered yet."),
    "waiting": ("waiting", "Samples that have reached no exit yet."),
    "slow_down": ("slow_down_ratio", "Time of a stage divided by its time in the profile, on average."),
    "slow_down_95": ("slow_down_95_ratio", "The same, 95th percentile: what is planned with."),
    "workers": ("workers", "Engine processes that are ready."),
    "restarts": ("restarts", "Engine processes that died and were replaced."),
}
"""By what an engine calls it: the name and what it is."""
