"""How fast an exported network answers on ONNX Runtime, against PyTorch: all exits, and the last exit alone.

To the last exit ``predict`` goes in two ways: without a limit it runs all stages as one graph; under a deadline, here
one that is never met, it runs them one by one. All exits are also compared with the same network as one ONNX graph
with all exits, which cannot be stopped: what the boundaries between the stages cost. msdnet-cifar is compared with the
original MSDNet as it is public, too. All take turns in one process. On one thread the time is that which the processor
spent; on more, that which passed.

python benchmarks/export_speed.py                            # resann-9-16, one thread
python benchmarks/export_speed.py msdnet-cifar 2             # two threads
python benchmarks/export_speed.py resann50 1 1               # batch 1 only
python benchmarks/export_speed.py timm:resnet18              # converted, four exits; also timm:vit_tiny_patch16_224
"""

import io
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import torch
from plain_msdnet import PlainMSDNet
from ratio import machine, report, seconds, verdict

import anytime
from anytime.memory import keep_freed_memory

GOALS = {("resann-9-16", 1): (0.45, 1.10), ("resann-9-16", 32): (0.65, 1.10)}
"""The last exit on ONNX Runtime against PyTorch, and all exits against one graph; on one thread."""

PUBLIC = 0.36
"""All exits of msdnet-cifar against the public MSDNet, batch 1, one thread."""


class Whole(torch.nn.Module):
    """All exits in one call."""

    def __init__(self, net: anytime.AnytimeNetwork) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return self.net(x)


def network(name: str) -> tuple[anytime.AnytimeNetwork, int]:
    """A network and the size of its images."""
    library, _, model = name.rpartition(":")
    if not library:
        net = anytime.create_model(name).eval()
        return net, net.image_size or 224
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    import_module("public").repair_torchvision()  # where it was built for another torch, timm would not import
    import timm

    size = 224
    made = timm.create_model(model, num_classes=10).eval()
    return anytime.convert(made, torch.randn(2, 3, size, size), exits=4).eval(), size


Network = Callable[[torch.Tensor], list[torch.Tensor]]


def one_graph(net: anytime.AnytimeNetwork, x: torch.Tensor, threads: int) -> Network | None:
    """The network as one ONNX graph with all exits; None for converted networks, whose graph cannot be traced."""
    import onnxruntime

    if isinstance(net, anytime.ConvertedNetwork):
        return None
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        axes = {"dynamic_axes": {"x": {0: "batch"}}, "input_names": ["x"]}
        torch.onnx.export(Whole(net).eval(), (x,), buffer, dynamo=False, opset_version=18, **axes)  # type: ignore[arg-type]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(buffer.getvalue(), options)
    return lambda x: [torch.from_numpy(logits) for logits in session.run(None, {"x": x.numpy()})]


def main(name: str, threads: int, batches: list[int], repeats: int) -> None:
    keep_freed_memory()
    torch.set_num_threads(threads)
    net, size = network(name)
    example = torch.randn(2, 3, size, size)
    with tempfile.TemporaryDirectory() as folder:
        exported = anytime.load_exported(anytime.export.onnx(net, example, folder), threads)
    single = one_graph(net, example, threads)
    plain = torch.nn.Sequential(*net.stages, net.heads[-1])
    public = PlainMSDNet().eval() if name == "msdnet-cifar" else None
    print(f"{name}, {net.exits} exits, {size}×{size}, {machine()}")
    for batch in batches:
        x = torch.randn(batch, 3, size, size)
        ways: dict[str, Callable[[], object]] = {
            "eager last": lambda x=x: plain(x),
            "eager all": lambda x=x: list(net.steps(x)),
            "last": lambda x=x: anytime.predict(exported, x),
            "deadline": lambda x=x: anytime.predict(exported, x, deadline=1e6),
            "all": lambda x=x: list(exported.steps(x)),
        }
        if single is not None:
            ways["one graph"] = lambda x=x: single(x)
        if public is not None:
            ways["public"] = lambda x=x: public(x)
        compare(name, threads, batch, ways, repeats)


def compare(name: str, threads: int, batch: int, ways: dict[str, Callable[[], object]], repeats: int) -> None:
    with torch.inference_mode():
        for way in [*ways.values(), *ways.values()]:
            way()
        timer = time.thread_time if threads == 1 else time.perf_counter
        slow = seconds(ways["eager all"]) > 0.5
        times = [{key: seconds(way, timer) for key, way in ways.items()} for _ in range(5 if slow else repeats)]

    def ratio(what: str, over: str, under: str) -> float:
        return report(f"{threads} thread, batch {batch}: {what}", [each[over] / each[under] for each in times])

    none = float("inf")
    last, boundaries = GOALS.get((name, batch), (none, none)) if threads == 1 else (none, none)
    verdict(f"last_{threads}_{batch}", ratio("to the last exit / PyTorch", "last", "eager last"), last)
    ratio("stage by stage to the last exit / PyTorch", "deadline", "eager last")
    ratio("through all exits / PyTorch", "all", "eager all")
    if "one graph" in ways:
        found = ratio("through all exits / one graph of all exits", "all", "one graph")
        verdict(f"boundaries_{threads}_{batch}", found, boundaries)
    if "public" in ways:
        found = ratio("through all exits / the public MSDNet", "all", "public")
        verdict(f"public_{threads}_{batch}", found, PUBLIC if (threads, batch) == (1, 1) else none)
        ratio("PyTorch through all exits / the public MSDNet", "eager all", "public")


if __name__ == "__main__":
    name, threads, batches, repeats = [*sys.argv[1:], *("resann-9-16", "1", "1,32", "60")[len(sys.argv) - 1 :]]
    main(name, int(threads), [int(batch) for batch in batches.split(",")], int(repeats))
