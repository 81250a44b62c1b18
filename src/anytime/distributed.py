"""Several processes that train one network together. In a single process these functions do nothing."""

import os

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, rendezvous  # pyright: ignore[reportPrivateImportUsage]


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def world_size() -> int:
    """Number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Rank of this process, from 0; only the first one writes files."""
    return dist.get_rank() if world_size() > 1 else 0


def begin() -> torch.device | None:
    """Join the processes that torchrun started; returns this one's device, or None if torchrun did not start it."""
    if "LOCAL_RANK" not in os.environ or not dist.is_available():
        return None
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = torch.device(accelerator.type, int(os.environ["LOCAL_RANK"])) if accelerator else torch.device("cpu")
    if accelerator:
        torch.accelerator.set_device_index(device)
    store, own_rank, size = next(rendezvous("env://"))
    # After a restart the store still has the addresses of the processes that were killed.
    store = PrefixStore(f"attempt {_restarts()}", store)
    dist.init_process_group(dist.get_default_backend_for_device(device), store=store, rank=own_rank, world_size=size)
    return device


def restarted() -> bool:
    """Whether torchrun started this process again after a failure."""
    return _restarts() > 0


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def wait() -> None:
    """Wait until all processes have called this."""
    if world_size() > 1:
        dist.barrier()


def end() -> None:
    """Leave the group."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def total(*tensors: Tensor, device: torch.device) -> None:
    """Add up each tensor over all processes, in place; ``device`` is where the processes exchange tensors."""
    if world_size() > 1:
        for tensor in tensors:
            shared = tensor.to(device)
            dist.all_reduce(shared)
            tensor.copy_(shared)


def average(tensors: list[Tensor]) -> None:
    """Average tensors over all processes, in place, in one message."""
    if world_size() == 1 or not tensors:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    flat /= world_size()
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))
