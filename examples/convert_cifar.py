"""Convert a ViT of transformers or a ResNet18 of timm, small ones, and train all of their exits on CIFAR-10.

pip install -e ".[cli,data,examples,plot]"
python examples/convert_cifar.py vit adaloss --data cifar10 --exits vit.layers.0,vit.layers.1,vit.layers.2
python examples/convert_cifar.py resnet const --data FOLDER --epochs 20

The run folder gets the model, the log, evaluation.json and the curve; a killed run goes on where it was.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import torch

import anytime
from anytime.errors import AnytimeError, require
from anytime.evaluation import collect
from anytime.memory import keep_freed_memory
from anytime.plotting import plot_curves


def build(name: str) -> torch.nn.Module:
    if name == "vit":
        sizes = {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 128}
        vit = require("transformers.models.vit.modeling_vit", "examples")
        return vit.ViTForImageClassification(vit.ViTConfig(image_size=32, patch_size=4, num_labels=10, **sizes))
    resnet = require("timm.models.resnet", "examples")
    model = resnet.ResNet(resnet.BasicBlock, (2, 2, 2, 2), num_classes=10, channels=(16, 32, 64, 128), stem_width=16)
    model.maxpool = torch.nn.Identity()  # small images need no more pooling
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["vit", "resnet"])
    parser.add_argument("scheme", nargs="?", default="adaloss")
    parser.add_argument("--data", default="cifar10", help="cifar10, or a folder of parquet files")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--subset", type=int, help="train on a balanced random subset of this many images")
    parser.add_argument("--exits", default="4", help="how many, evenly over the cost; or after which modules: a,b,c")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="the run folder; otherwise one in runs/")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    asked = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(asked.seed)
    data = anytime.load_data(asked.data)
    if asked.subset:
        data = data.subset(asked.subset, asked.seed)
    exits = int(asked.exits) if asked.exits.isdigit() else asked.exits.split(",")
    net = anytime.convert(build(asked.model), torch.zeros(1, *data.shape), exits=exits)
    result = anytime.fit(
        net,
        data,
        asked.scheme,
        epochs=asked.epochs,
        optimizer={"vit": "adamw", "resnet": "sgd"}[asked.model],
        lr={"vit": 0.001, "resnet": 0.1}[asked.model],
        batch_size=64,
        seed=asked.seed,
        output=asked.output or Path("runs") / f"convert-{asked.model}-{asked.scheme}-seed{asked.seed}",
        resume=True,
        show=not asked.json,
    )
    assert result.curve is not None
    assert result.folder is not None
    plot_curves({asked.scheme: result.curve}, result.folder / "curve.png", f"{asked.model}, converted, on {data.name}")
    wrong = collect(net.eval(), data.batches(data.test)).wrong.double()
    fewer = wrong[:-1] - wrong[1:]  # on the same images
    deviations = (fewer.mean(1) / fewer.std(1) * fewer.shape[1] ** 0.5).tolist()
    seconds = statistics.median(epoch["seconds"] for epoch in result.history) * len(result.history)
    if asked.json:
        facts = {"places": net.places, "fractions": result.curve.costs.fractions, "errors": wrong.mean(1).tolist()}
        print(json.dumps({**facts, "deviations": [None, *deviations], "minutes": round(seconds / 60)}))
        return
    for exit, (place, share) in enumerate(zip(net.places, result.curve.costs.fractions, strict=True)):
        line = f"{place:28} {share:6.1%} of the cost  {wrong[exit].mean():.2%} error"
        print(line + (f", {deviations[exit - 1]:.1f} standard deviations below the exit before" if exit else ""))
    print(f"trained in {seconds / 60:.0f} minutes, pauses not counted")


if __name__ == "__main__":
    try:
        main()
    except AnytimeError as error:
        sys.exit(str(error))
