"""``anytime predict``."""

import json
import re
from pathlib import Path
from typing import Annotated

import anytime
from anytime.cli.app import DEVICES, Option, app, device_named, typer
from anytime.cli.tables import prediction_table, show
from anytime.errors import AnytimeError, check_integer
from anytime.export.backend import load_backend


@app.command("predict")
def predict_command(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run or a saved model.")],
    image: Annotated[Path, typer.Argument(help="Image file.")],
    deadline: Annotated[str | None, Option(help="Time limit, e.g. 20ms or 0.5s. Default: none, the last exit.")] = None,
    top: Annotated[int, Option(help="Number of classes to show.")] = 5,
    backend: Annotated[str, Option(help="eager (PyTorch) or onnx (ONNX Runtime, faster on processors).")] = "eager",
    device: Annotated[str, Option(help=DEVICES)] = "auto",
    as_json: Annotated[bool, Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Classify an image: the most probable classes, the exit that answered, and the time it took.

    The time is that of a network that has answered before: an image is predicted once without a limit first.

    Examples:
    - `anytime predict runs/digits-resann-3-16-adaloss-seed0 digit.png`
    - `anytime predict runs/a cat.jpg --deadline 20ms --top 3`
    - `anytime predict runs/a cat.jpg --backend onnx` exports the model to runs/a/onnx the first time
    """
    check_integer("--top", top)
    limit = None if deadline is None else seconds(deadline)
    net = load_backend(run, backend).to(device_named("cpu" if backend == "onnx" else device))
    x = net.preprocess(image)
    anytime.predict(net, x)
    prediction = anytime.predict(net, x, deadline=limit)
    probabilities = prediction.logits[0].softmax(-1)
    names = list(net.preprocessing.classes) if net.preprocessing else []
    best = probabilities.topk(min(top, len(probabilities)))
    found: list[tuple[str, float]] = [
        (names[i] if i < len(names) else str(i), probability)
        for probability, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
    if as_json:
        record = {
            "classes": [{"class": name, "probability": probability} for name, probability in found],
            "exit": prediction.exit + 1,
            "exits": net.exits,
            "milliseconds": 1000 * prediction.seconds,
            "stopped_by": prediction.stopped_by,
        }
        print(json.dumps(record, indent=2))
        return
    show(prediction_table(found, prediction, net.exits, str(image)))


def seconds(text: str) -> float:
    """A duration in seconds.

    Examples:
        >>> seconds("20ms"), seconds("0.5s"), seconds("2")
        (0.02, 0.5, 2.0)
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|s|)", text.strip())
    if not match:
        raise AnytimeError(f"--deadline {text}: expected a duration such as 20ms or 0.5s")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)
