"""Milliseconds of the model that comes with the package beside plain networks: eager, ONNX Runtime, 8-bit integers.

python benchmarks/published.py --realtime

Batch 1, one thread. Plain networks have no exits: the same stages and last head, and ResNet-8, the reference network of
MLPerf Tiny's image task, which has 12.5 million multiply-accumulates too (random weights: only its time counts). With
``--realtime`` it runs within ``anytime.realtime()``: then other programs on the machine do not count.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from ratio import fact, interleaved, machine, report
from torch import Tensor, nn

import anytime
from anytime.selection import SelectedNetwork
from anytime.serving.embedded import FOLDER, samples


class Residual(nn.Module):
    """ReLU(x + conv 3×3 – BN – ReLU – conv 3×3 – BN), the shortcut a convolution of 1×1 where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The next features."""
        return (self.shortcut(x) + self.layers(x)).relu()


def resnet8() -> nn.Sequential:
    """MLPerf Tiny's reference network for CIFAR-10."""
    stem = [nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    blocks = [Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).eval()


def exported(net: anytime.Network, images: Tensor, name: str) -> anytime.Network:
    """The same on ONNX Runtime, in 8-bit integers if asked."""
    folder = Path(tempfile.mkdtemp())
    made = anytime.export.onnx(net, images[:1], folder / "float32")
    if name == "int8":
        batches = [(images, torch.zeros(len(images), dtype=torch.int64))]
        made = anytime.export.int8(made, folder / name, batches, batches, tolerate=100).folder
    return anytime.load_exported(made)


def main(repeats: int) -> None:
    """Print the milliseconds of every exit, and their ratios to the plain network of the same backbone."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = anytime.load(FOLDER).float().eval()
    images = net.preprocess(samples())
    x = images[:1]
    last = SelectedNetwork(net, [net.exits - 1])
    reference = anytime.convert(resnet8(), x, exits=1).eval()
    print(f"{net.config}, batch 1, {machine()}")
    for backend in ("eager", "ONNX", "int8"):
        nets = (net, last, reference)
        ours, plain, resnet = nets if backend == "eager" else [exported(each, images, backend) for each in nets]
        base = answer(plain, 1, x)
        answers = {f"exit {exits}": answer(ours, exits, x) for exits in range(1, net.exits + 1)}
        for name, run in {**answers, "ResNet-8": answer(resnet, 1, x)}.items():
            pairs = interleaved(run, base, repeats)
            report(f"{backend}: {name} / plain network", [a / b for a, b in pairs])
            fact(f"{backend}_{name.replace(' ', '_')}_ms", 1000 * sorted(a for a, _ in pairs)[repeats // 2], "ms")
        times = sorted(b for _, b in interleaved(base, base, repeats))
        fact(f"{backend}_plain_ms", 1000 * times[repeats // 2], "ms")


def answer(net: anytime.Network, exits: int, x: Tensor) -> Callable[[], object]:
    """A prediction at an exit."""
    return lambda: anytime.predict(net, x, exits=exits)


if __name__ == "__main__":
    began = time.perf_counter()
    with anytime.realtime() if "--realtime" in sys.argv else nullcontext():
        main(int(next((each for each in sys.argv[1:] if each.isdigit()), 200)))
    print(f"{time.perf_counter() - began:.0f} s")
