"""Exits of a ViT that are its own tail, or linear layers of their own; frozen and trained: errors on CIFAR-10.

python benchmarks/own_tail.py DATA [SEEDS] [--json]      # about a minute for each seed and training, on one core

The ViT of transformers has six blocks of 64 features, of patches of 8×8 pixels, and random weights; it learns on 5,000
images. Frozen: it is trained without exits and gets them afterwards. Its own tail then has nothing to train; linear
heads are trained by the recipe for heads. Trained: all exits learn together, with AdaLoss. Small and short trainings:
they compare exits, and do not say how good a ViT can be.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from ratio import fact, machine

import anytime
from anytime.errors import require

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import public  # pyright: ignore[reportMissingImports]

BLOCKS, IMAGES, EPOCHS = 6, 5000, 12
KINDS = ("own", "linear")


def build(seed: int) -> torch.nn.Module:
    """The ViT."""
    torch.manual_seed(seed)
    vit: Any = require("transformers.models.vit.modeling_vit", "examples")
    sizes = {"hidden_size": 64, "num_hidden_layers": BLOCKS, "num_attention_heads": 4, "intermediate_size": 128}
    return vit.ViTForImageClassification(vit.ViTConfig(image_size=32, patch_size=8, num_labels=10, **sizes))


def train(net: anytime.Network, data: Any, scheme: str, seed: int) -> None:
    """Everything, from random weights."""
    options: dict[str, Any] = {"optimizer": "adamw", "lr": 0.001, "batch_size": 64}
    anytime.fit(net, data, scheme, epochs=EPOCHS, seed=seed, show=False, **options)


def main(name: str, seeds: int) -> None:
    print(machine())
    public.repair_torchvision()
    data = anytime.load_data(name, show=False).subset(IMAGES, 0)
    x = torch.zeros(1, *data.shape)
    for seed in range(seeds):
        plain = build(seed)
        train(anytime.convert(plain, x, exits=BLOCKS, head="own"), data, f"opt-{BLOCKS}", seed)
        for kind in KINDS:
            frozen = anytime.convert(plain, x, exits=BLOCKS, head=kind).freeze()
            if kind != "own":
                anytime.fit(frozen, data, epochs=5, seed=seed, augment=False, show=False)
            trained = anytime.convert(build(seed), x, exits=BLOCKS, head=kind)
            train(trained, data, "adaloss", seed)
            for what, net in (("frozen", frozen), ("trained", trained)):
                for exit, error in enumerate(anytime.evaluate(net.eval(), data).errors, start=1):
                    fact(f"{kind}_{what}_seed{seed}_{exit}", error)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
