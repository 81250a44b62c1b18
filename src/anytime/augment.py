"""Augmentation of a whole batch of bytes at once, on whatever device it is.

Random numbers are drawn for the batch on the CPU from a generator that the caller seeds, so the same seed gives the
same pictures on every device.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def pad_crop(pixels: Tensor, pad: int, generator: torch.Generator) -> Tensor:
    """Pad with zeros on all sides and cut each image out again at a random place."""
    n, _, height, width = pixels.shape
    shifts = torch.randint(2 * pad + 1, (2, n), generator=generator).to(pixels.device)
    rows = shifts[0, :, None, None] + torch.arange(height, device=pixels.device)[None, :, None]
    columns = shifts[1, :, None, None] + torch.arange(width, device=pixels.device)[None, None, :]
    padded = F.pad(pixels, (pad, pad, pad, pad)).movedim(1, -1)
    image = torch.arange(n, device=pixels.device)[:, None, None]
    return padded[image, rows, columns].movedim(-1, 1)


def flip(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image left to right with probability 1/2."""
    mirrored = torch.rand(len(pixels), generator=generator).to(pixels.device) < 0.5
    return torch.where(mirrored[:, None, None, None], pixels.flip(-1), pixels)
