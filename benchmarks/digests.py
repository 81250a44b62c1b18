"""Digests of short runs: a change that shall not alter behavior leaves them equal.

python benchmarks/digests.py > before.txt        # then change the code
python benchmarks/digests.py | diff before.txt -

Each digest is of all numbers that a run gives, to the last bit. They depend on torch's build and on the machine, so
they are compared on one machine and not kept; threads are set to one.
"""

import copy
import hashlib
import json
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from serving_optimum import random_tables, random_trace, simulate
from torch import Tensor, nn

import anytime

DATA = anytime.load_data("digits")
assert isinstance(DATA.test, anytime.Images)
X = DATA.normalize(DATA.test.pixels[:6])


def digest(values: Any) -> str:
    """Of tensors, or of anything that JSON can hold, in containers."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            found.update(f"{value.dtype} {tuple(value.shape)}".encode())
            found.update(value.detach().float().contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            add([part for key in sorted(value) for part in (key, value[key])])
        elif isinstance(value, list | tuple):
            for part in value:
                add(part)
        else:
            found.update(json.dumps(value).encode())

    add(values)
    return found.hexdigest()[:16]


def small(name: str = "resann-1-4", seed: int = 1) -> anytime.Network:
    torch.manual_seed(seed)
    return anytime.create_model(name, in_channels=1)


def all_ways(net: anytime.Network, x: Any) -> list[Any]:
    """What every way to ask a network gives, its costs and its state dict."""
    net.eval()
    with torch.no_grad():
        whole = list(net(x))
        stepped = [step.logits for step in net.steps(x, [0, -1])]
        walked = [reached() for reached in net.walk(x) if reached is not None]
    limited = [anytime.predict(net, x, exits=exit + 1) for exit in range(net.exits)]
    cost = anytime.costs(net, x)
    return [
        whole, stepped, walked, [(each.logits, each.exit, each.stopped_by, each.macs) for each in limited],
        cost.macs, cost.params, cost.heads, net.state_dict(),
    ]  # fmt: skip


def without_time(history: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if "second" not in key} for record in history]


def train() -> Any:
    net = small()
    result = anytime.fit(net, DATA, "adaloss", epochs=2, show=False)
    assert result.curve is not None
    return [without_time(result.history), result.curve.record(), all_ways(net, X)]


def resume() -> Any:
    """A run that was interrupted after three steps, and its continuation."""
    net = small()

    def interrupt(step: dict[str, Any]) -> None:
        if step["step"] == 3:
            raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"epochs": 2, "output": folder, "show": False, "checkpoint_seconds": 0}
        with suppress(KeyboardInterrupt):
            anytime.fit(net, DATA, "geometric-mean", on_step=interrupt, **options)
        again = small(seed=2)
        result = anytime.fit(again, DATA, "geometric-mean", resume=True, **options)
        return [without_time(result.history), all_ways(again, X), anytime.load(folder).state_dict()]


def combine() -> Any:
    net, found = small(), []
    for rule in ("ensemble", "stacking", "product"):
        fitted = None if rule == "product" else DATA.batches(DATA.validation)
        found.append(all_ways(anytime.combine(net, rule, fitted), X))
    boosted = anytime.combine(small(), "boosting")
    anytime.fit(boosted, DATA, "const", epochs=1, show=False)
    return [*found, all_ways(boosted, X)]


def calibrate() -> Any:
    net = small("resann-2-4").eval()
    found = []
    for options in ({"budget": 0.6}, {"budget": 0.7, "rule": "geometric"}, {"risk": 0.1, "delta": 0.1}):
        policy = anytime.calibrate(net, DATA.batches(DATA.validation), **options)  # type: ignore[arg-type]
        answers = policy.predict(net, X)
        found.append([policy.thresholds, policy.costs, policy.shares, answers.logits, answers.exits])
    return found


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.norm(self.conv(x)) + x)


class Untraceable(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.detach().sum().item() < 1e9 else x


def converted(block: type[nn.Module] = Block) -> anytime.ConvertedNetwork:
    torch.manual_seed(1)
    layers = [nn.Conv2d(1, 4, 3, padding=1), *(block() for _ in range(4))]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return anytime.convert(model, X[:1], exits=3)


def convert() -> Any:
    net = converted()
    found = [net.layout(), all_ways(net, X), net(torch.ones(2, 1, 12, 12))]  # also for images of another size
    anytime.fit(net, DATA, "adaloss", epochs=1, show=False)
    policy = anytime.calibrate(net.eval(), DATA.batches(DATA.validation), budget=0.8)
    return [*found, all_ways(net, X), list(policy.predict(net, X))]


def convert_paused() -> Any:
    net = converted(Untraceable)
    found = [net.layout(), all_ways(net, X)]
    anytime.fit(net, DATA, "const", epochs=1, show=False)
    return [*found, all_ways(net, X)]


def export() -> Any:
    found = []
    for net in (small().eval(), converted(), anytime.EANN([small().eval(), small("resann-2-4").eval()])):
        with tempfile.TemporaryDirectory() as folder:
            exported = anytime.load_exported(anytime.export.onnx(net.eval(), X, folder))
            described = json.loads((Path(folder) / "anytime.json").read_text())
            parts = {key: described[key] for key in ("values", "stages", "states", "heads", "exits", "costs")}
            found += [parts, all_ways(exported, X)]
    return found


def eann() -> Any:
    nets = [small(), small("resann-2-4", seed=2), converted()]
    whole = anytime.EANN(nets, example=X[:1])
    before = all_ways(whole, X)
    errors = whole.fit_order(DATA.batches(DATA.validation))
    policy = anytime.calibrate(whole.eval(), DATA.batches(DATA.validation), budget=0.5)
    again = anytime.EANN(copy.deepcopy(nets), example=X[:1])
    again.load_state_dict(whole.state_dict())
    return [before, errors, whole.offered, all_ways(whole, X), list(policy.predict(whole, X)), all_ways(again, X)]


def trace() -> Any:
    draw = random.Random(0)
    found = []
    for kind in ("once", "same", "mixed") * 7:
        tables = random_tables(draw)
        full = sum(line.at(1) for line in tables.times.stages)
        found.append(simulate(tables, random_trace(draw, kind, draw.uniform(0.5, 4), full), random.Random(1)))
    return found


def served() -> Any:
    """What an engine answers without a deadline: the last exits, whatever batches they shared."""
    net = small().eval()
    with anytime.Engine(net, processes=0, max_batch=4, example=X[:1], accuracy=[0.5, 0.6, 0.7]) as engine:
        return [(engine.submit(x).result().logits, engine.submit(x).result().exit) for x in X.split(1)]


RUNS: tuple[Callable[[], Any], ...] = (
    train, resume, combine, calibrate, convert, convert_paused, export, eann, served, trace,
)  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    for run in RUNS:
        begun = time.perf_counter()
        print(f"{run.__name__:15} {digest(run())}", flush=True)
        print(f"{run.__name__}: {time.perf_counter() - begun:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
