"""The three facts that README.md begins with, from their records."""

import math
from collections.abc import Callable
from typing import Any

from published_tables import PUBLISHED, final_records

Results = Callable[[str], dict[str, Any]]


def percent(value: float, digits: int = 0) -> str:
    """A share as a percentage without its sign."""
    return f"{100 * value:.{digits}f}"


def early(results: Results) -> str:  # noqa: ARG001
    """What the model in the package gets right if easy images leave early, beside published networks."""
    ours = final_records("45000")[0]["held_out_thresholds"][0]
    plain, *others = (PUBLISHED[name] for name in ("ResNet-8, without exits", "T-RecX", "SDN", "BranchyNet"))
    return (
        f"{percent(ours['accuracy'], 1)} % of CIFAR-10's test images right for {ours['macs'] / 1e6:.1f} million multiply-accumulates an "
        f"image, where ResNet-8 without exits has {plain[-1]:.1f} % for 12.5, and the best of three published networks with exits "
        f"{max(each[0] for each in others):.1f} % for 6"
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


def shipped(results: Results) -> str:
    """What early exits save of the time of a single image, with a small network."""
    facts = results("shipped")["facts"]
    return (
        f"{percent(facts['early_error'], 1)} % of the test images wrong for {percent(facts['early_macs'])} % of the multiply-accumulates, "
        f"{percent(facts['whole_error'], 1)} % for all of them, but {facts['early_ms']:.2f} ms an image instead of {facts['whole_ms']:.2f}"
    )


FACTS = {"shipped_early": shipped, "fact_early": early, "fact_deadlines": deadlines, "fact_load": load}
"""By the name of the figure."""
