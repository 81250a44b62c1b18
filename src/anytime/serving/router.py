"""Which replica of a Ray Serve deployment gets a request: the one with the least predicted time to its first exit."""

from collections import Counter
from typing import Any

from anytime.errors import require

_routing: Any = require("ray.serve.request_router", "cluster")


class ByFirstExit(_routing.FIFOMixin, _routing.RequestRouter):
    """Prefers the replica with the least predicted time to the first exit."""

    def initialize_state(self, **_: Any) -> None:
        """Start with no requests sent."""
        self.sent: Counter[Any] = Counter()

    def predicted(self, replica: Any) -> float:
        """Predicted seconds until the first exit of a request at a replica."""
        stats = replica.routing_stats or {}
        # Reports are outdated: requests sent and not answered since then count too.
        return stats.get("first_exit_seconds", 0.0) + self.sent[replica.replica_id] * stats.get("seconds_each", 1e-3)

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:  # noqa: ARG002
        """Rank the replicas, best first."""
        return [[replica] for replica in sorted(candidate_replicas, key=self.predicted)]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:  # noqa: ARG002
        """Count a request that was sent."""
        self.sent[replica_id] += 1

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:  # noqa: ARG002
        """Count a request that was answered."""
        self.sent[replica_id] -= 1
