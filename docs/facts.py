"""The three facts that README.md begins with, from their records."""

import math
from collections.abc import Callable
from typing import Any

Results = Callable[[str], dict[str, Any]]


def percent(value: float, digits: int = 0) -> str:
    """A share as a percentage without its sign."""
    return f"{100 * value:.{digits}f}"


def early(results: Results) -> str:
    """What is left of the time, and what it costs, when easy samples leave early."""
    found = results("budgets")
    point = min(found["budgets"]["common"], key=lambda each: abs(each["budget"] / found["macs"][-1] - 0.5))
    time = results("early_exit")["figures"]["time: early exits / whole network, last head"]
    return (
        f"{percent(point['error'], 1)} % wrong with {percent(point['cost'] / found['macs'][-1])} % of the multiply-accumulates, "
        f"{percent(found['errors'][-1], 1)} % with all; at half of them a batch takes {percent(time['median'])} % of the time"
    )


SHARES = (0.5, 0.75, 1, 1.25, 1.5)
"""The deadlines that are reported, as parts of the time of the whole network."""


def deadlines(results: Results) -> str:
    """The share of frames that are answered in time, over the deadlines from half to one and a half of the full time."""
    facts = results("deadlines_quiet")["facts"]
    full = facts["full_eager_ms"]
    kept = [math.floor(100 * facts[f"in_time_quiet_eager_30hz_{share:g}"] + 1e-9) for share in SHARES]
    exits = [facts[f"exit_quiet_eager_30hz_{share:g}"] for share in (SHARES[0], SHARES[-1])]
    return (
        f"{min(kept)} to {max(kept)} % of frames in time, 30 a second, with deadlines of {SHARES[0] * full:.1f} to "
        f"{SHARES[-1] * full:.1f} ms (exits {exits[0]:.0f} to {exits[1]:.0f} of 27)"
    )


def load(results: Results) -> str:
    """What is right and in time at twice the load of full depth."""
    facts = results("serving_load")["facts"]
    return (
        f"at twice the load that the whole network can bear, {2 * facts['full_depth_per_second']:.0f} requests a second on one core due in "
        f"25 to 100 ms, {percent(facts['score_engine_2x'])} % are answered right and in time, without early exits {percent(facts['score_full_2x'])} %"
    )


FACTS = {"fact_early": early, "fact_deadlines": deadlines, "fact_load": load}
"""By the name of the figure."""
