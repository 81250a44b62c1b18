"""Measured seconds of a network: the clock, what they depend on, and the file beside a model that keeps them."""

import platform
import time
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from anytime.cost import Form, form_of, tensor_form
from anytime.errors import AnytimeError
from anytime.files import read_json, write_json
from anytime.inputs import device_of
from anytime.network import Network, clone_tensors, eval_mode, weights_device


class Kind(NamedTuple):
    """What a latency depends on besides the network."""

    device: str
    threads: int
    inputs: Form


M = TypeVar("M")


def kind_of(x: Any, device: torch.device | None = None) -> Kind:
    """The kind of an input on this machine, with the present number of threads."""
    device, threads = device or device_of(x), torch.get_num_threads()
    if isinstance(x, Tensor):
        return _kind_of_tensor(device, threads, x.dtype, x.shape)
    return Kind(_name(device), threads, form_of(x))


@lru_cache(256)
def _kind_of_tensor(device: torch.device, threads: int, dtype: torch.dtype, shape: torch.Size) -> Kind:
    return Kind(_name(device), threads, (tensor_form(dtype, shape),))


@cache
def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda, {torch.cuda.get_device_name(device)}"
    if device.type != "cpu":
        return device.type
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return f"cpu, {model or platform.processor() or platform.machine()}"


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


Run = list[tuple[float, float | None]]
"""Seconds of each stage and of the head after it, None where it has none."""


def measure(net: Any, x: Any, repeats: int, warmup: int = 0, pause: float = 0.0) -> list[Run]:
    """``repeats`` runs, after ``warmup`` that are not counted; before each the process may sleep for some seconds."""
    return [_clock(net, clone_tensors(x), pause) for _ in range(warmup + repeats)][warmup:]  # stages may work in place


def joined(runs: Sequence[Run], how: Callable[[list[float]], float] = median) -> Run:
    """One time of each stage and head out of several runs: their medians, or what ``how`` makes of them."""
    found = []
    for times in zip(*runs, strict=True):
        heads = [head for _, head in times if head is not None]
        found.append((how([stage for stage, _ in times]), how(heads) if heads else None))
    return found


def exit_seconds(net: Network, example: Any) -> list[float]:
    """Median seconds from the start to each exit's prediction; an example on the meta device stands for zeros."""
    device = weights_device(net)
    example = tree_map(lambda leaf: torch.zeros_like(leaf, device=device) if leaf.is_meta else leaf, example)
    with eval_mode(net):
        times = joined(measure(net, example, repeats=30, warmup=5))
    ends = accumulate(stage for stage, _ in times)
    return [end + head for end, (_, head) in zip(ends, times, strict=True) if head is not None]


@torch.inference_mode()
def _clock(net: Any, x: Any, pause: float) -> Run:
    device, times = device_of(x), []
    synchronize(device)
    if pause:
        time.sleep(pause)
    start = time.perf_counter()
    for exit in net.walk(x):
        synchronize(device)
        reached = time.perf_counter()
        if exit is not None:
            exit()
            synchronize(device)
        end = time.perf_counter()
        times.append((reached - start, None if exit is None else end - reached))
        start = end
    return times


def add_to_file(path: Path, key: str, old: list[Any], new: Any) -> Path:
    """Write measurements (``stages``, ``heads``, ``kind``, …), the new one in place of an old one of the same kind."""
    every = [*(measured for measured in old if measured.kind != new.kind), new]
    entries = [{**(m.kind._asdict() if m.kind else {}), **vars(m), "kind": None} for m in every]
    write_json(path, {key: entries}, sealed=True)
    return path


def read_from_file(path: Path, key: str, make: Callable[[dict[str, Any], Kind], M], fix: str) -> list[M]:
    """What ``add_to_file`` wrote, if anything.

    Args:
        path: the file.
        key: what the measurements are called in it.
        make: one measurement of its entry in the file and its kind; raises ``ValueError`` for wrong numbers.
        fix: what to do about a damaged file.
    """
    if not path.is_file():
        return []
    found = []
    try:
        for entry in read_json(path, sealed=True)[key]:
            if len(entry["stages"]) != len(entry["heads"]) or not entry["stages"]:
                raise ValueError("stages and heads must have the same length >= 1")
            inputs = tuple((str(kind), tuple(int(n) for n in shape)) for kind, shape in entry["inputs"])
            found.append(make(entry, Kind(str(entry["device"]), int(entry["threads"]), inputs)))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise AnytimeError(f"{path} is damaged ({reason}): {fix}") from None
    return found
