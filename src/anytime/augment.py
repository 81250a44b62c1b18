"""Augmentation of a whole batch of bytes at once, on whatever device it is.

Each takes one random number between 0 and 1 for each image and decision, drawn by the caller on the CPU: so a seed
gives the same pictures on every device, and a process that has only a part of a batch takes its part of the numbers.
"""

import hashlib

import torch
import torch.nn.functional as F
from torch import Tensor


def mix(*numbers: int) -> int:
    """A generator's seed from a run's seed, epoch and position, unlike that of any others."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()) >> 1


def pad_crop(pixels: Tensor, pad: int, down: Tensor, right: Tensor) -> Tensor:
    """Pad with zeros on all sides and cut each image out again, so far down and so far to the right."""
    n, channels, height, width = pixels.shape
    down, right = ((place * (2 * pad + 1)).long().to(pixels.device)[:, None] for place in (down, right))
    # With channels last, a row of the cut-out is one run of bytes; index whole runs, not pixels.
    padded = F.pad(pixels.movedim(1, -1), (0, 0, pad, pad, pad, pad)).flatten(2)
    runs = padded.unfold(2, width * channels, channels)
    image = torch.arange(n, device=pixels.device)[:, None]
    row = down + torch.arange(height, device=pixels.device)
    return runs[image, row, right].unflatten(2, (width, channels)).movedim(-1, 1)


def flip(pixels: Tensor, coin: Tensor) -> Tensor:
    """Mirror left to right the images whose coin shows less than 1/2."""
    mirrored = (coin < 0.5).to(pixels.device)[:, None, None, None]
    return torch.where(mirrored, pixels.flip(-1), pixels)


def blur(pixels: Tensor, strongest: float, share: Tensor) -> Tensor:
    """Gaussian blur, each image with its share of the strongest deviation, in pixels; borders are repeated."""
    height, width = pixels.shape[2:]
    radius = max(1, round(2 * strongest))
    sigma = (share * strongest).clamp(min=1e-3).to(pixels.device)
    offsets = torch.arange(-radius, radius + 1, device=pixels.device)
    weights = torch.exp(-offsets.square() / (2 * sigma[:, None].square()))
    weights = (weights / weights.sum(1, keepdim=True)).T[:, :, None, None, None]
    x = F.pad(pixels.float(), (radius,) * 4, mode="replicate")
    x = torch.stack([w * x[:, :, i : i + height] for i, w in enumerate(weights)]).sum(0)
    x = torch.stack([w * x[..., i : i + width] for i, w in enumerate(weights)]).sum(0)
    return x.round().to(torch.uint8)
