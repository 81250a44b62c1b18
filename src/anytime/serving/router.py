"""Which replica of a Ray Serve deployment gets a request: the one with the least predicted time to its first exit."""

from collections import Counter
from typing import Any

from anytime.errors import require

_routing: Any = require("ray.serve.request_router", "cluster")


class ByFirstExit(_routing.FIFOMixin, _routing.RequestRouter):
    """Prefers the replica with the least predicted time to the first exit."""

    def initialize_state(self, **_: Any) -> None:
        """Nothing was sent yet."""
        self.sent: Counter[Any] = Counter()

    def predicted(self, replica: Any) -> float:
        """Seconds until a request would have its first exit there."""
        stats = replica.routing_stats or {}
        # Reports are some time old: what was sent and not answered since then counts too.
        return stats.get("first_exit_seconds", 0.0) + self.sent[replica.replica_id] * stats.get("seconds_each", 1e-3)

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:  # noqa: ARG002
        """The replicas, best first."""
        return [[replica] for replica in sorted(candidate_replicas, key=self.predicted)]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:  # noqa: ARG002
        """A request was sent."""
        self.sent[replica_id] += 1

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:  # noqa: ARG002
        """A request was answered."""
        self.sent[replica_id] -= 1
