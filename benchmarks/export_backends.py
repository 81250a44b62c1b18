"""Other ways to run a network on a processor, against PyTorch: one thread, to the last exit, batch 1 and 32.

AOTInductor and ExecuTorch run every stage by itself; so does ONNX Runtime under a deadline, while without one it runs
all stages as one graph; OpenVINO has the whole network as one ONNX graph. What is not installed is left out. All take
turns in one process; the time is what the processor spent on all threads. Compiling takes minutes.

python benchmarks/export_backends.py                   # resann-9-16; pip install executorch openvino
python benchmarks/export_backends.py msdnet-cifar
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before any of these libraries makes its threads

import io
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from ratio import machine, report, seconds

import anytime
from anytime.memory import keep_freed_memory

Way = Callable[[torch.Tensor], Any]


def compiled(net: anytime.AnytimeNetwork, x: torch.Tensor, folder: Path) -> Way:
    """Every stage and the last head compiled ahead of time for inputs of this size, with their weights frozen."""
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    parts, state = [], x
    with torch.no_grad():
        for number, part in enumerate([*net.stages, net.heads[-1]]):
            path = aoti_compile_and_package(
                torch.export.export(part, (state,)),
                package_path=str(folder / f"{len(x)}-{number}.pt2"),
                inductor_configs={"freezing": True},
            )
            parts.append(aoti_load_package(path))
            state = part(state)

    def way(x: torch.Tensor) -> Any:
        for part in parts:
            x = part(x)
        return x

    return way


def openvino(plain: torch.nn.Module, x: torch.Tensor) -> Way:
    """The network to its last exit as one ONNX graph on OpenVINO."""
    buffer = io.BytesIO()
    torch.onnx.export(plain, (x,), buffer, dynamo=False, opset_version=18)  # type: ignore[arg-type]
    settings = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    core = import_module("openvino").Core()
    network = core.compile_model(core.read_model(buffer.getvalue()), "CPU", settings)
    return lambda x: network([x.numpy()])


def executorch(net: anytime.AnytimeNetwork, x: torch.Tensor, folder: Path) -> Way:
    """Every stage and the last head as programs of ExecuTorch, as ``anytime export --to executorch`` writes them."""
    exported = anytime.load_exported(anytime.export.executorch(net, x, folder / f"executorch-{len(x)}"))
    return lambda x: anytime.predict(exported, x)


def main(name: str, repeats: int) -> None:
    keep_freed_memory()
    torch.set_num_threads(1)
    net = anytime.create_model(name).eval()
    size = net.image_size or 224
    plain = torch.nn.Sequential(*net.stages, net.heads[-1]).eval()
    print(f"{name}, {net.exits} exits, {size}×{size}, {machine()}")
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(temporary)
        exported = anytime.load_exported(anytime.export.onnx(net, torch.randn(2, 3, size, size), folder / "onnx"), 1)
        for batch in (1, 32):
            x = torch.randn(batch, 3, size, size)
            ways: dict[str, Way] = {
                "PyTorch": plain,
                "ONNX Runtime as one graph": lambda x: anytime.predict(exported, x),
                "ONNX Runtime by stages": lambda x: anytime.predict(exported, x, deadline=1e6),
            }
            ways["AOTInductor by stages"] = compiled(net, x, folder)
            if find_spec("openvino"):
                ways["OpenVINO as one graph"] = openvino(plain, x)
            if find_spec("executorch"):
                ways["ExecuTorch by stages"] = executorch(net, x, folder)
            compare(batch, ways, x, repeats)


def compare(batch: int, ways: dict[str, Way], x: torch.Tensor, repeats: int) -> None:
    with torch.inference_mode():
        for way in [*ways.values(), *ways.values()]:
            way(x)
        times = [
            {key: seconds(lambda way=way: way(x), time.process_time) for key, way in ways.items()}
            for _ in range(repeats)
        ]
    for key in list(ways)[1:]:
        report(f"batch {batch}: {key} / PyTorch", [each[key] / each["PyTorch"] for each in times])


if __name__ == "__main__":
    name, repeats = [*sys.argv[1:], *("resann-9-16", "20")[len(sys.argv) - 1 :]]
    main(name, int(repeats))
