"""A training epoch (data, augmentation, log, metrics, validation, checkpoints) against a bare loop on ready tensors.

    python benchmarks/epoch_overhead.py

The bare loop: forward, one loss per exit, weighted sum, backward, SGD, and a forward pass over as many held-out images
as ours evaluates; no new images, nothing counted, nothing saved. Ours writes a checkpoint after each epoch, which takes
a few seconds here; by default it does so every 30 seconds.
"""

import tempfile
from pathlib import Path

import torch
from exit_tax import trainer
from ratio import interleaved, machine, report, verdict

import anytime
from anytime.memory import keep_freed_memory

IMAGES, BATCH = 1024, 128


def main() -> None:
    keep_freed_memory()
    pixels = torch.randint(256, (IMAGES, 32, 32, 3), dtype=torch.uint8).movedim(-1, 1)
    images = anytime.Images(pixels, torch.randint(10, (IMAGES,)))
    held_out = images[torch.arange(IMAGES // 10)]
    data = anytime.Data(images, validation=held_out, classes=[str(i) for i in range(10)])
    net, bare = (anytime.create_model("resann-7-16") for _ in range(2))
    step = trainer(bare, torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,)))
    held = torch.randn(len(held_out), 3, 32, 32)
    epochs = iter(range(1000))

    with tempfile.TemporaryDirectory() as folder:

        def ours() -> None:
            output = Path(folder) / str(next(epochs))
            anytime.fit(net, data, epochs=1, batch_size=BATCH, output=output, show=False)

        def loop() -> None:
            bare.train()
            for _ in range(IMAGES // BATCH):
                step()
            bare.eval()
            with torch.inference_mode():
                bare(held)

        print(f"resann-7-16, {IMAGES} images per epoch, batch {BATCH}, {machine()}")
        pairs = interleaved(ours, loop, 11)
    verdict("epoch_overhead", report("time of an epoch, ours / bare loop", [a / b for a, b in pairs]), 1.05)


if __name__ == "__main__":
    main()
