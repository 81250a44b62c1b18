"""``anytime predict``."""

import json
from pathlib import Path
from typing import Annotated

import anytime
from anytime.cli.app import BACKEND, DEVICES, THREADS, Option, app, moved, say_next, typer, use_threads
from anytime.cli.tables import prediction_table, show
from anytime.errors import AnytimeError, check_integer
from anytime.export.backend import load_backend
from anytime.serving.deadlines import seconds
from anytime.serving.embedded import FOLDER, check_backend

PATHS = "Folder of a run, a saved model or an exported network, which may be left out, and an image file."


@app.command("predict")
def predict_command(
    paths: Annotated[list[Path], typer.Argument(metavar="[RUN] IMAGE", help=PATHS, show_default=False)],
    deadline: Annotated[str | None, Option(help="Time limit, e.g. 20ms or 0.5s. Default: none, the last exit.")] = None,
    top: Annotated[int, Option(help="Number of classes to show.")] = 5,
    backend: Annotated[str, Option(help=BACKEND)] = "auto",
    threads: Annotated[int | None, Option(help=THREADS)] = None,
    device: Annotated[str, Option(help=DEVICES)] = "auto",
    as_json: Annotated[bool, Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Classify an image: the most probable classes, the exit that answered, and the time it took.

    Without RUN, the small CIFAR-10 model that comes with the package answers: airplanes, cars, animals, ships, trucks.
    The image is predicted twice, and the second prediction is shown: the first one of a process is slower.

    Examples:
    - `anytime predict photo.jpg`
    - `anytime predict runs/digits-resann-3-16-adaloss-seed0 digit.png`
    - `anytime predict runs/a cat.jpg --deadline 20ms --top 3`
    - Exported to runs/a/onnx the first time: `anytime predict runs/a cat.jpg --backend onnx`
    """
    check_integer("--top", top)
    use_threads(threads)
    limit = None if deadline is None else seconds(deadline, "--deadline")
    if len(paths) > 2:
        raise AnytimeError(f"expected a folder and an image, got {len(paths)} paths; each image needs its own command")
    run, image = (FOLDER, *paths) if len(paths) == 1 else paths
    if image.is_dir():
        hint = (
            "give an image file" if len(paths) == 2 else f"give an image too, as in anytime predict {image} photo.jpg"
        )
        raise AnytimeError(f"{image} is a folder: {hint}")
    check_backend(run, backend)
    net = moved(load_backend(run, backend).float(), device)
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
            "exit": prediction.exit,  # from 0, as over HTTP and in Python; tables and messages count from 1
            "exits": net.exits,
            "milliseconds": 1000 * prediction.seconds,
            "stopped_by": prediction.stopped_by,
        }
        print(json.dumps(record, indent=2))
        return
    show(prediction_table(found, prediction, net.exits, str(image)))
    if limit is None:
        say_next("predict", *paths, "--deadline", f"{500 * prediction.seconds:.3g}ms")
    else:
        say_next("serve", *([] if run == FOLDER else [run]))
