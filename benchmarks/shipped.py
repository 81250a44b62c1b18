"""The model in this package by the clock, one image at a time on one thread.

python benchmarks/shipped.py             # CIFAR-10 from the Hub
python benchmarks/shipped.py DATA        # or from a folder

Its policy lets an image leave at the first exit that is sure enough. Errors are those of all test images, milliseconds
the means over 1,000 of them, each predicted by the policy and by the whole network in turn. Then come the answers of
 ``predict`` for a picture on which the exits disagree, before three deadlines: of 100 calls the one with the median
exit.
"""

import statistics
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from ratio import RESULTS, fact, interleaved, machine, report

import anytime
from anytime.evaluation import collect
from anytime.serving.embedded import FOLDER, samples

IMAGES, PREDICTIONS = 1000, 100


def main(source: str) -> None:
    torch.set_num_threads(1)
    net, policy = anytime.load(FOLDER).float().eval(), anytime.Policy.load(FOLDER)
    data = anytime.load_data(source).matching(net.preprocessing)  # type: ignore[arg-type]
    print(f"{net.exits} exits, {machine()}")
    errors(net, policy, data)
    times(net, policy, data)
    deadlines(net)


def errors(net: anytime.Network, policy: anytime.Policy, data: Any) -> None:
    """Of the policy and of the whole network, on all test images."""
    test = collect(net, data.batches(data.test))
    exits = policy.choose_exits(test.logits)
    fact("images", len(exits))
    fact("exits", net.exits)
    fact("risk", policy.risk)
    fact("early_error", test.wrong[exits, torch.arange(len(exits))].double().mean().item())
    fact("whole_error", test.wrong[-1].double().mean().item())
    fact("early_macs", policy.cost(exits) / policy.costs[-1])
    fact("left_first", (exits == 0).double().mean().item())


def times(net: anytime.Network, policy: anytime.Policy, data: Any) -> None:
    """Mean milliseconds of an image."""
    images = data.normalize(data.test.pixels[:: len(data.test.pixels) // IMAGES][:IMAGES])
    with torch.inference_mode():
        pairs = [
            interleaved(lambda x=x: policy.predict(net, x), lambda x=x: net(x, [-1]), 1)[0] for x in images.split(1)
        ]
    for name, seconds in zip(("early", "whole"), zip(*pairs, strict=True), strict=True):
        fact(f"{name}_ms", 1000 * statistics.fmean(seconds), "ms")
    tenths = [pairs[start::10] for start in range(10)]  # ten samples of the images: what their means spread
    report("mean time of an image: early exits / whole network", [_ratio(part) for part in tenths])


def _ratio(pairs: list[tuple[float, float]]) -> float:
    return sum(early for early, _ in pairs) / sum(whole for _, whole in pairs)


def deadlines(net: anytime.Network) -> None:
    """The answers to a picture before three deadlines, the last of which leaves time for the whole network."""
    path, x = example(net)
    profile = anytime.profile(net, x, repeats=200)
    RESULTS["facts"]["stages_ms"] = [1000 * seconds for seconds in profile.stages]
    RESULTS["facts"]["heads_ms"] = [1000 * (seconds or 0.0) for seconds in profile.heads]
    first, middle, last = (1000 * profile.alone[exit] for exit in (0, net.exits // 2, -1))
    answers = [answer(x, limit) for limit in (1.5 * first, 1.3 * middle, 1.5 * last)]
    print(path.name, answers)
    RESULTS["facts"]["picture"] = path.name
    RESULTS["facts"]["answers"] = answers


def example(net: anytime.Network) -> tuple[Path, torch.Tensor]:
    """The first sample picture that the last exit has right and the first one wrong, if there is one."""
    for path in samples():
        x = net.preprocess(path)
        with torch.inference_mode():
            first, *_, last = (net.preprocessing.classes[i] for i in torch.stack(net(x)).argmax(-1)[:, 0])  # type: ignore[union-attr]
        if first != last and path.stem.endswith(last):
            return path, x
    return samples()[0], net.preprocess(samples()[0])


def answer(x: torch.Tensor, limit: float) -> dict[str, Any]:
    """The median of what ``predict`` answers before a deadline in milliseconds, by the exit; as in a new process."""
    net, limit = anytime.load(FOLDER).float().eval(), round(limit, 1)
    anytime.profile(net, x, repeats=200)
    found = []
    for _ in range(PREDICTIONS):
        with suppress(anytime.UnfinishedError):
            found.append(anytime.predict(net, x, deadline=limit / 1000))
    if not found:
        return answer(x, limit + 0.1)
    middle = sorted(found, key=lambda each: (each.exit, each.seconds))[len(found) // 2]
    sure = middle.logits[0].softmax(-1)
    return {
        "deadline_ms": limit,
        "class": net.preprocessing.classes[int(sure.argmax())],  # type: ignore[union-attr]
        "probability": float(sure.max()),
        "exit": middle.exit + 1,
        "ms": 1000 * middle.seconds,
        "in_time": sum(not each.late for each in found) / PREDICTIONS,
    }


if __name__ == "__main__":
    main(*sys.argv[1:] or ["cifar10"])
