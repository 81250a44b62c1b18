"""The input pipeline: cached, augmented, normalized images per second, against the best that users have otherwise.

    python benchmarks/pipeline.py

Pad by 4, crop, mirror, normalize; all begin with decoded images. The rivals: (1) Pillow image by image in a
``DataLoader`` with as many workers as cores; (2) the same transforms written on tensors for a whole batch, with one
crop per image by advanced indexing, as fast CIFAR scripts do it. The verdict is against the faster of them.
"""

import random

import numpy as np
import torch
from exit_tax import trainer
from PIL import Image, ImageOps
from ratio import machine, report, seconds, verdict
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import anytime
from anytime.data.images import Take
from anytime.distributed import cores
from anytime.memory import keep_freed_memory

BATCH, IMAGES, REPEATS = 128, 39 * 128, 9


class PillowImages(Dataset[tuple[Tensor, int]]):
    """One image at a time, as torchvision's transforms do it."""

    def __init__(self, arrays: np.ndarray, mean: Tensor, std: Tensor) -> None:
        self.arrays, self.mean, self.std = arrays, mean, std

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        image = ImageOps.expand(Image.fromarray(self.arrays[i]), 4)
        left, top = random.randrange(9), random.randrange(9)
        image = image.crop((left, top, left + 32, top + 32))
        if random.random() < 0.5:
            image = ImageOps.mirror(image)
        tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255)
        return tensor.sub_(self.mean).div_(self.std), 0


def batch_transforms(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Normalize, pad, crop and mirror a batch of bytes, N × C × H × W, with plain tensor operations."""
    x = torch.nn.functional.pad(pixels.float().div_(255).sub_(mean).div_(std), (4, 4, 4, 4))
    rows = torch.randint(9, (len(x), 1)) + torch.arange(32)
    columns = torch.randint(9, (len(x), 1)) + torch.arange(32)
    columns = torch.where(torch.rand(len(x), 1) < 0.5, columns.flip(1), columns)
    which = torch.arange(len(x))[:, None, None]
    return x[which, :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


def main() -> None:
    """Measure all three in turn."""
    keep_freed_memory()  # as the train command does
    pixels = torch.randint(256, (IMAGES, 32, 32, 3), dtype=torch.uint8).movedim(-1, 1)
    data = anytime.Data(anytime.Images(pixels, torch.randint(10, (IMAGES,))), classes=[str(i) for i in range(10)])
    mean, std = (torch.tensor(v)[:, None, None] for v in (data.mean, data.std))
    takes = [Take(part, seed=i, total=BATCH) for i, part in enumerate(torch.randperm(IMAGES).split(BATCH))]
    contiguous = pixels.contiguous()
    images = PillowImages(pixels.movedim(1, -1).numpy(), mean, std)
    loader = DataLoader(images, BATCH, shuffle=True, num_workers=cores(), persistent_workers=True)

    def ours() -> None:
        for batch in data.train.batches(takes, anytime.Recipe().augmentation):
            data.normalize(batch.pixels)

    def workers() -> None:
        for _ in loader:
            pass

    def batches() -> None:
        for part in torch.randperm(IMAGES).split(BATCH):
            batch_transforms(contiguous[part], mean, std)

    systems = {"ours": ours, "DataLoader": workers, "batch transforms": batches}
    for work in systems.values():
        work()
    times = [{name: seconds(work) for name, work in systems.items()} for _ in range(REPEATS)]
    speeds = ", ".join(f"{name} {IMAGES / min(t[name] for t in times):,.0f}" for name in systems)
    print(f"images/s at best: {speeds}; {machine()}")
    rivals = {
        name: report(f"images/s, ours / {name}", [t[name] / t["ours"] for t in times])
        for name in ("DataLoader", "batch transforms")
    }
    verdict("pipeline", min(rivals.values()), 1.0, least=True)
    step = trainer(anytime.create_model("resann-7-16"), torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,)))
    step()
    eaten = [seconds(step) / BATCH / (seconds(ours) / IMAGES) for _ in range(REPEATS)]
    verdict("pipeline_consumed", report("images/s, ours / consumed by training resann-7-16", eaten), 20, least=True)


if __name__ == "__main__":
    main()
