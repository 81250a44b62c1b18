"""Does the server notice when its inputs change? Test images of CIFAR-10 over HTTP, then blurred ones, ones of low
contrast, or house numbers (SVHN): after how many requests it warns and alarms, with 2 % of the requests audited. It
should alarm only where the promise is broken, more than 2.4 % of the answers differing from the last exit's.

First, how often 1,000 monitors alarm that see the outputs for test images, drawn at random, without a shift; then a
server of the embedded model for each shift.

python benchmarks/serving_shift.py --data DIR [--only none|blur|contrast|svhn|simulation]

DIR holds the data sets as for ``python -m experiments``.
"""

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter
from ratio import RESULTS, fact, machine, verdict
from serving_http import Client

import anytime
from anytime.evaluation import collect
from anytime.inference import Monitor
from anytime.serving.embedded import FOLDER

sys.path.append(str(Path(__file__).parents[1]))  # the project's root, where experiments/ is
from experiments.runner import find_data

SHARE, DELTA, BEFORE, AFTER, STEP, CLIENTS = 0.02, 0.05, 2000, {"blur": 16000}, 250, 4
RUNS, AUDITS = 1000, 300
USUAL = 6000


def blurred(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(3))


def low_contrast(image: Image.Image) -> Image.Image:
    return ImageEnhance.Contrast(image).enhance(0.3)


def same(image: Image.Image) -> Image.Image:
    return image


def images_of(data: anytime.Data) -> list[Image.Image]:
    test: Any = data.test
    return [Image.fromarray(pixels) for pixels in test.pixels.movedim(1, -1).numpy()]


def encoded(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "PNG", compress_level=1)
    return content.getvalue()


def without_a_shift(net: anytime.Network, data: anytime.Data) -> None:
    """How many monitors alarm or warn that see test images, each in an order of its own."""
    policy = anytime.Policy.load(FOLDER)
    outputs = collect(net, data.batches(data.test))
    exits = policy.choose_exits(outputs.logits)
    left = (exits < len(outputs.logits) - 1).tolist()
    chosen = outputs.logits[exits, torch.arange(len(exits))].argmax(-1).tolist()
    last, labels = outputs.logits[-1].argmax(-1).tolist(), outputs.labels.tolist()
    draw, alarms, warnings = np.random.default_rng(0), 0, 0
    scores = Monitor(policy).score(outputs.logits[0])
    for _ in range(RUNS):
        monitor = Monitor(policy, DELTA)
        for i in draw.integers(len(labels), size=AUDITS).tolist():
            monitor.compare(chosen[i], last[i], left[i])
            monitor.label(chosen[i], last[i], labels[i])
            monitor.see(scores[i])
        alarms += monitor.alarm is not None
        warnings += monitor.warning is not None
    fact("false_alarms", alarms, f"of {RUNS} monitors with {AUDITS} audited samples")
    fact("false_warnings", warnings, f"of {RUNS}")
    verdict("serving_shift_false_alarms", alarms / RUNS, DELTA)
    verdict("serving_shift_false_warnings", warnings / RUNS, DELTA)


@contextmanager
def server() -> Iterator[int]:
    command = [sys.executable, "-m", "anytime", "serve", "--port", "0", "--no-access-log", "--audit", str(SHARE)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline().rpartition(":")[2])
        finally:
            process.send_signal(signal.SIGTERM)


def about(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/monitor") as reply:
        return json.load(reply)["models"]["cifar10"]


def shifted(name: str, clean: list[Image.Image], later: list[Image.Image], change: Callable[..., Image.Image]) -> None:
    """One server: clean images, then changed ones until it alarms."""
    draw = np.random.default_rng(1)
    with server() as port, ThreadPoolExecutor(CLIENTS) as pool:
        clients: SimpleQueue[Client] = SimpleQueue()
        for _ in range(CLIENTS):
            clients.put(Client(port, "/predict?deadline=20s"))

        def ask(image: bytes) -> None:
            client = clients.get()
            client.ask(image)
            clients.put(client)

        trail, sent, warned, alarmed = [], 0, None, None
        while sent < BEFORE + AFTER.get(name, USUAL) and not (alarmed is not None and sent >= alarmed + 3 * STEP):
            source, how = (clean, same) if sent < BEFORE else (later, change)
            chosen = [encoded(how(source[i])) for i in draw.integers(len(source), size=STEP)]
            list(pool.map(ask, chosen))
            sent += STEP
            found = about(port)
            warned = sent if warned is None and found["warning"] else warned
            alarmed = sent if alarmed is None and found["alarm"] else alarmed
            keys = ("seen", "audited", "disagreement", "allowed", "early", "early_allowed", "evidence", "shares")
            trail.append({"sent": sent, **{key: found[key] for key in keys}})
    RESULTS["facts"][f"{name}_trail"] = trail
    print(f"{name}: warned after {warned}, alarmed after {alarmed} requests; the shift came after {BEFORE}")
    for what, when in (("warning", warned), ("alarm", alarmed)):
        fact(f"{name}_{what}", -1 if when is None else when - BEFORE, f"requests from the shift to the {what}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", help="one of none, blur, contrast, svhn, simulation")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"the embedded model, {machine()}")
    net = anytime.load(FOLDER).float().eval()
    data, other = (anytime.load_data(str(find_data(asked.data, name)), show=False) for name in ("cifar10", "svhn"))
    data = data.matching(net.preprocessing)
    fact("before", BEFORE, "requests before the shift")
    if asked.only in (None, "simulation"):
        without_a_shift(net, data)
    clean = images_of(data)
    shifts = {
        "none": (clean, same),
        "blur": (clean, blurred),
        "contrast": (clean, low_contrast),
        "svhn": (images_of(other), same),
    }
    for name, (later, change) in shifts.items():
        if asked.only in (None, name):
            shifted(name, clean, later, change)


if __name__ == "__main__":
    main()
