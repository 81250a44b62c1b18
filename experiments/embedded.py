"""Make the model that comes with the package from a network of the race: weights of 16 bits, card, record, images.

    python -m experiments.race train --data DIR --output RUNS      # trains it, among others
    python -m experiments.race test --data DIR --output RUNS
    python -m experiments.embedded RUNS/entry-45000-60-seed0 --data DIR

The network has to have held-out images: its policy's promise is made with them.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import anytime
from anytime.evaluation import Outputs, collect
from anytime.files import read_json, write_json, write_text
from anytime.serving.embedded import FOLDER
from experiments import race
from experiments.race_measure import BUDGETS

PUBLISHED = Path(__file__).with_name("published.json")
"""Accuracies of published networks at the budgets, measured from their weights."""
RISK, DELTA = 0.01, 0.05
"""Images that leave early may cost one point of accuracy against the last exit, with a probability of 95 %."""

README = """# The model that comes with the package

A `{model}` ({params:,} parameters, {exits} exits) trained on {images:,} images of CIFAR-10 for {epochs}
epochs with {scheme}, saved with 16 bits. Right on {first:.1%} of {test:,} test images at its first exit,
on {last:.1%} at its last.

| file | what it is |
|---|---|
| `config.json`, `model.safetensors` | the model with its classes; `anytime.load(folder).float()` reads it |
| `training.json` | the training: data, recipe, seed, versions, and its last epoch |
| `evaluation.json` | error and cost of every exit on the test images, with these weights |
| `policy.json` | when sure images leave: at most {risk:.0%} less accuracy (probability {sure:.0%}), saves {saved:.0%} |
| `images/` | twelve test images: of each class the first that is right at last, then two on which the exits disagree |

## Beside published networks
Accuracy in % on the test images when sure images leave early, at an average of at most so many multiply-accumulates.
All exits have one threshold on the largest probability; it is set so that the test images cost the budget, as for the
published networks, which were trained on 50,000 images. With the thresholds that {held_out:,} held-out images give:
{honest}.

{table}

The images are from CIFAR-10 (Alex Krizhevsky, Vinod Nair, Geoffrey Hinton: "Learning Multiple Layers of Features from
Tiny Images", 2009, https://www.cs.toronto.edu/~kriz/cifar.html). `python -m experiments.embedded RUN --data DIR` makes
this folder from a run.
"""


def main() -> None:
    """Make the folder."""
    parser = argparse.ArgumentParser("python -m experiments.embedded", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a finished training of the race, with held-out images")
    parser.add_argument("--data", type=Path, required=True, help="the folder with the data sets")
    parser.add_argument("--output", type=Path, default=FOLDER, help="default: the package's own folder")
    make(**vars(parser.parse_args()))


def make(run: Path, data: Path, output: Path) -> None:
    """Write the model of a run, what is known of it, and sample images."""
    tested = read_json(race.RECORDS / f"test-{run.name}.json")
    images = race.load(data, None)
    assert isinstance(images.validation, anytime.Images)
    net = race.kind_of(tested["answers"], anytime.load(run), images)
    if tested["exits"] != list(range(net.exits)):
        raise SystemExit(f"{run.name} answers with exits {tested['exits']} only: select them before it ships")
    shutil.rmtree(output, ignore_errors=True)
    anytime.save(net.half(), output)
    net = anytime.load(output).float()  # measured with the weights that are shipped
    curve = anytime.evaluate(net, images)
    policy = anytime.calibrate(net, images.batches(images.validation), risk=RISK, delta=DELTA)
    policy.save(output)
    write_json(output / "evaluation.json", curve.record())
    record = training_record(run)
    write_json(output / "training.json", record)
    write_samples(collect(net, images.batches(images.test)), images, output / "images")
    errors = [error for error in curve.errors if error is not None]
    about = {
        "model": record["model"]["model"],
        "params": sum(parameter.numel() for parameter in net.parameters()),
        "exits": net.exits,
        "images": record["data"]["images"],
        "epochs": record["recipe"]["epochs"],
        "scheme": record["scheme"].partition("(")[0] + f" with power {tested['entry']['scheme'].partition('=')[2]}",
        "first": 1 - errors[0],
        "last": 1 - errors[-1],
        "test": curve.images,
        "risk": RISK,
        "sure": 1 - DELTA,
        "saved": 1 - sum(s * c for s, c in zip(policy.shares, policy.costs, strict=True)) / policy.costs[-1],
        "held_out": len(images.validation),
        "honest": ", ".join(
            f"{at['accuracy']:.1%} at {at['macs'] / 1e6:.2f} M" for at in tested["held_out_thresholds"]
        ),
        "table": table(tested["as_published"]),
    }
    write_text(output / "README.md", README.format(**about))
    print(f"{output}: {sum(path.stat().st_size for path in output.rglob('*') if path.is_file()):,} bytes")
    print("accuracy by exit:", " ".join(f"{1 - error:.1%}" for error in errors))


def table(ours: list[dict[str, float]]) -> str:
    """Accuracies at each budget, this model's first."""
    rows = {"**this model**": [100 * at["accuracy"] for at in ours], **read_json(PUBLISHED)["accuracy"]}
    cells = {name: ["–" if value is None else f"{value:.2f}" for value in values] for name, values in rows.items()}
    head = ["accuracy in %", *(f"{budget / 1e6:g} M" for budget in BUDGETS)]
    lines = [head, ["---"] + ["---:"] * len(BUDGETS), *([name, *row] for name, row in cells.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def training_record(run: Path) -> dict[str, Any]:
    """What the run was asked for and how its last epoch went."""
    log = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return {**read_json(run / "run.json"), "last_epoch": json.loads(log[-1])}


def write_samples(outputs: Outputs, data: anytime.Data, folder: Path) -> None:
    """One image of each class, and the two on which the exits change their minds most often."""
    right = ~outputs.wrong[-1]
    chosen = [int((right & (outputs.labels == label)).nonzero()[0]) for label in range(len(data.classes))]
    said = outputs.logits.argmax(-1)
    changes = (said[1:] != said[:-1]).sum(0) * right
    chosen += [i for i in changes.argsort(descending=True, stable=True).tolist() if i not in chosen][:2]
    assert isinstance(data.test, anytime.Images)
    folder.mkdir(parents=True)
    for number, i in enumerate(chosen):
        pixels = data.test[torch.tensor([i])].pixels[0].movedim(0, -1).numpy()
        name = data.classes[int(outputs.labels[i])]
        Image.fromarray(pixels).save(folder / f"{number:02}-{name}.png", optimize=True)


if __name__ == "__main__":
    main()
