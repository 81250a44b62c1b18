"""Convert a model of Hugging Face transformers and train all of its exits on CIFAR-10.

python examples/convert_cifar.py vit adaloss --data cifar10
python examples/convert_cifar.py resnet const --data FOLDER --epochs 20

The run folder gets the model, the log, evaluation.json and the curve; a killed run goes on where it was.
"""

import argparse
from pathlib import Path

import torch
from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification

import anytime
from anytime.memory import keep_freed_memory
from anytime.plot import plot_curves


def build(name: str) -> torch.nn.Module:
    if name == "vit":
        sizes = {"hidden_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 192}
        return ViTForImageClassification(ViTConfig(image_size=32, patch_size=4, num_labels=10, **sizes))
    widths = [32, 64, 128, 256]
    config = ResNetConfig(
        embedding_size=32, hidden_sizes=widths, depths=[2, 2, 2, 2], layer_type="basic", num_labels=10
    )  # fmt: skip
    return ResNetForImageClassification(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["vit", "resnet"])
    parser.add_argument("scheme", nargs="?", default="adaloss")
    parser.add_argument("--data", default="cifar10", help="cifar10, or a folder of parquet files")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--exits", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="the run folder; otherwise one in runs/")
    asked = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(asked.seed)
    data = anytime.load_data(asked.data)
    net = anytime.convert(build(asked.model), torch.zeros(1, *data.shape), exits=asked.exits)
    print(f"{asked.model}: exits after {', '.join(net.places)}")
    result = anytime.fit(
        net,
        data,
        asked.scheme,
        epochs=asked.epochs,
        lr={"vit": 0.03, "resnet": 0.1}[asked.model],
        batch_size=64,
        seed=asked.seed,
        output=asked.output or Path("runs") / f"convert-{asked.model}-{asked.scheme}-seed{asked.seed}",
        resume=True,
    )
    assert result.curve is not None
    assert result.folder is not None
    plot_curves({asked.scheme: result.curve}, result.folder / "curve.png", f"{asked.model}, converted, on {data.name}")
    for place, error, share in zip(net.places, result.curve.errors, result.curve.costs.fractions, strict=True):
        print(f"{place:40} {share:6.1%} of the cost  {error:.2%} error")


if __name__ == "__main__":
    main()
