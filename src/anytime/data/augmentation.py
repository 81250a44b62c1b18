"""Augmentation of whole batches of bytes, N × H × W × C, on any device.

The functions take one random number from 0 to 1 per image and decision, drawn on the CPU for the whole batch: so a
seed gives the same images on every device, and a process with a part of the batch uses its part of the numbers.
"""

import hashlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Augmentation:
    """Random changes to training images.

    Args:
        pad: Pixels of zero padding on each side before a random crop to the original size; 0 for none.
        flip: Mirror images left to right with probability 1/2.
        blur: Largest standard deviation of a Gaussian blur, in pixels; 0 for none.
        crop: Whether streamed images are cropped at random; the center is kept otherwise.
    """

    pad: int = 0
    flip: bool = False
    blur: float = 0.0
    crop: bool = True

    def changes(self, streamed: bool) -> bool:
        """Whether an image may be another one in each epoch."""
        return self.flip or (self.crop if streamed else bool(self.pad or self.blur))

    def __call__(self, pixels: Tensor, seed: int, first: int, total: int) -> Tensor:
        """Augment N × C × H × W bytes: the images from position ``first`` on of a batch of ``total`` with this seed."""
        pixels = pixels.movedim(1, -1)
        draws = torch.rand(4, total, generator=torch.Generator().manual_seed(seed))[:, first : first + len(pixels)]
        if self.pad:
            pixels = pad_crop(pixels, self.pad, draws[0], draws[1])
        if self.flip:
            pixels = flip(pixels, draws[2])
        if self.blur:
            pixels = blur(pixels, self.blur, draws[3])
        return pixels.movedim(-1, 1)


def mix(*numbers: int) -> int:
    """A seed that depends on all of these numbers, e.g. the seed of a run, an epoch and a position."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()) >> 1


def pad_crop(pixels: Tensor, pad: int, down: Tensor, right: Tensor) -> Tensor:
    """Pad with zeros on all sides and crop to the original size; ``down`` and ``right`` say where, from 0 to 1."""
    n, height, width, channels = pixels.shape
    padded = F.pad(pixels, (0, 0, pad, pad, pad, pad))
    # A row of the crop is contiguous in memory. A view that has one such run from each pixel lets rows be copied whole.
    runs = padded.flatten().unfold(0, width * channels, channels)
    steps = torch.stack([down, right]).mul_(2 * pad + 1).long()
    first = (torch.arange(n) * padded.shape[1] + steps[0]) * padded.shape[2] + steps[1]
    rows = first[:, None] + torch.arange(0, height * padded.shape[2], padded.shape[2])
    return runs.index_select(0, rows.flatten().to(pixels.device)).view(n, height, width, channels)


def flip(pixels: Tensor, coin: Tensor) -> Tensor:
    """Mirror left to right the images whose number is below 1/2."""
    mirrored = coin < 0.5
    which = mirrored.nonzero().squeeze(1).to(pixels.device)
    both = torch.cat([pixels, pixels.index_select(0, which).flip(2)])
    place = torch.where(mirrored, len(pixels) - 1 + mirrored.cumsum(0), torch.arange(len(pixels)))
    return both.index_select(0, place.to(pixels.device))


def blur(pixels: Tensor, strongest: float, share: Tensor) -> Tensor:
    """Gaussian blur with a standard deviation of ``share`` × ``strongest`` pixels per image; borders are repeated."""
    height, width = pixels.shape[1:3]
    radius = max(1, round(2 * strongest))
    sigma = (share * strongest).clamp(min=1e-3).to(pixels.device)
    offsets = torch.arange(-radius, radius + 1, device=pixels.device)
    weights = torch.exp(-offsets.square() / (2 * sigma[:, None].square()))
    weights = (weights / weights.sum(1, keepdim=True)).T[:, :, None, None, None]
    x = F.pad(pixels.movedim(-1, 1).float(), (radius,) * 4, mode="replicate")
    x = torch.stack([w * x[:, :, i : i + height] for i, w in enumerate(weights)]).sum(0)
    x = torch.stack([w * x[..., i : i + width] for i, w in enumerate(weights)]).sum(0)
    return x.round().to(torch.uint8).movedim(1, -1)
