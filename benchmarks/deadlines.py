"""Predictions under random deadlines between 0 and 1.5 times the full time: how late, how deep. One thread, batch 1.

python benchmarks/deadlines.py                   # resann-9-16, 10,000 predictions
python benchmarks/deadlines.py resann-9-16 2000
"""

import random
import statistics
import sys
import time

import torch
from ratio import fact, machine, verdict

import anytime


def seconds_to_first_exit(net: anytime.Network, x: torch.Tensor) -> float:
    """Seconds that the first exit takes now, by a clock of our own: the median of three runs."""
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        with torch.inference_mode():
            net(x, [0])
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def main(name: str, predictions: int) -> None:
    torch.set_num_threads(1)
    net = anytime.create_model(name).eval()
    x = torch.randn(1, 3, 32, 32)
    with torch.inference_mode():
        right = [logits.clone() for logits in net(x)]
    profile = anytime.profile(net, x, repeats=200, warmup=50)
    full, stage = profile.alone[-1], max(profile.stages)
    print(f"{name}, batch 1, {machine()}")
    fact("full_ms", 1000 * full, "ms to the last exit")
    fact("longest_stage_ms", 1000 * stage, "ms")

    draw = random.Random(0)
    late, fits, could, wrong, refused, refused_wrongly, too_late, again = [], [], [], 0, 0, 0, 0, profile
    for i in range(predictions):
        if i % 250 == 0:  # the machine's speed changes: what fits now is measured again
            again = anytime.profile(net, x, repeats=20, warmup=2)
        deadline = draw.uniform(0, 1.5 * full)
        begun = time.perf_counter()
        try:
            prediction = anytime.predict(net, x, deadline=deadline)
        except anytime.UnfinishedError as error:
            spent = time.perf_counter() - begun
            if error.prediction is None:
                refused += 1
                refused_wrongly += spent + seconds_to_first_exit(net, x) < deadline
            else:
                too_late += 1
                wrong += spent <= deadline  # it was in time by our clock
            continue
        late.append(time.perf_counter() - begun - deadline)
        wrong += not torch.equal(prediction.logits, right[prediction.exit])
        deepest = again.deepest(deadline)
        fits.append((prediction.exit - deepest) if deepest is not None else 0)
        further = again.alone[min(prediction.exit + 2, net.exits - 1)] - again.alone[prediction.exit]
        pace = prediction.seconds / again.alone[prediction.exit]
        could.append(net.exits - prediction.exit > 2 and prediction.seconds + pace * further < deadline)
    share = {shift: fits.count(shift) / len(fits) for shift in sorted(set(fits))}
    late.sort()
    p50, p99 = statistics.median(late), late[int(0.99 * len(late))]
    fact("answered", len(late))
    fact("unfinished", refused + too_late, "without time for the first exit")
    fact("refused", refused, "of them before they began")
    fact("refused_wrongly", refused_wrongly, "although the first exit, run right after, was fast enough")
    fact("wrong", wrong, "predictions")
    fact("overrun_p50_ms", 1000 * p50, "ms")
    fact("overrun_p99_ms", 1000 * p99, "ms")
    fact("overrun_largest_ms", 1000 * late[-1], "ms")
    print(
        "exit reached less the deepest that fits by the profile:",
        ", ".join(f"{s:+d}: {p:.1%}" for s, p in share.items() if p > 0.001),
    )
    verdict("deadlines_valid", wrong / predictions, 0.0)
    verdict("deadlines_refused_wrongly", refused_wrongly / max(1, refused), 0.05)
    verdict("deadlines_p50_ms", 1000 * p50, 0.0)
    verdict("deadlines_p99_over_stage_plus_5ms", p99 / (stage + 0.005), 1.0)
    print("deepest exit that fits or the one before: by the profile's medians; at the pace of the same prediction")
    verdict("deadlines_deepest_by_profile", share.get(0, 0) + share.get(-1, 0), 0.95, least=True)
    verdict("deadlines_deepest_at_its_pace", 1 - sum(could) / len(could), 0.95, least=True)


if __name__ == "__main__":
    name, predictions = [*sys.argv[1:], *("resann-9-16", "10000")[len(sys.argv) - 1 :]]
    main(name, int(predictions))
