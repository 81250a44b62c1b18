"""The input pipeline: cached, augmented, normalized images a second, against what a network eats and against Pillow.

    python benchmarks/pipeline.py

Pad by 4, cut out, mirror, normalize: ours on whole batches of bytes; Pillow's image by image, each made a tensor and
normalized and then stacked, as torchvision's transforms and torch's loader do. Both begin with decoded images.
"""

import random

import numpy as np
import torch
from exit_tax import trainer
from PIL import Image, ImageOps
from ratio import interleaved, machine, report, seconds, verdict

import anytime
from anytime.data.images import Take
from anytime.memory import keep_freed_memory

BATCH = 128


def main() -> None:
    keep_freed_memory()  # as the train command does
    pixels = torch.randint(256, (5000, 32, 32, 3), dtype=torch.uint8).movedim(-1, 1)
    data = anytime.Data(anytime.Images(pixels, torch.randint(10, (5000,))), classes=[str(i) for i in range(10)])
    arrays = pixels.movedim(1, -1).numpy()
    mean, std = (torch.tensor(v)[:, None, None] for v in (data.mean, data.std))
    indices = torch.randperm(5000)[: 39 * BATCH]
    takes = [Take(part, seed=i, total=BATCH) for i, part in enumerate(indices.split(BATCH))]

    def ours() -> None:
        for batch in data.train.batches(takes, anytime.Recipe().augmentation):
            data.normalize(batch.pixels)

    def pillow() -> None:
        for part in indices.split(BATCH):
            batch = []
            for i in part.tolist():
                image = ImageOps.expand(Image.fromarray(arrays[i]), 4)
                left, top = random.randrange(9), random.randrange(9)
                image = image.crop((left, top, left + 32, top + 32))
                if random.random() < 0.5:
                    image = ImageOps.mirror(image)
                tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div_(255)
                batch.append(tensor.sub_(mean).div_(std))
            torch.stack(batch)

    n = len(indices)
    pairs = interleaved(ours, pillow, 15)
    print(f"ours {n / min(a for a, _ in pairs):,.0f} images/s, Pillow {n / min(b for _, b in pairs):,.0f}; {machine()}")
    against_pillow = report("images/s, ours / Pillow", [b / a for a, b in pairs])
    step = trainer(anytime.create_model("resann-7-16"), torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,)))
    step()
    eaten = [(seconds(step) / BATCH, seconds(ours) / n) for _ in range(7)]
    against_network = report("images/s, ours / eaten by training resann-7-16", [a / b for a, b in eaten])
    verdict("pipeline", min(against_pillow, against_network), 20, least=True)


if __name__ == "__main__":
    main()
