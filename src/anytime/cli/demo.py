"""``anytime demo``."""

import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from anytime.cli.app import Option, app, drawing, end_stopped, say_next, use_threads
from anytime.cli.tables import deadlines_table, savings_table, show, stops_table
from anytime.data.dataset import Data
from anytime.data.loading import load_data
from anytime.evaluation import collect
from anytime.inference.calibration import sweep
from anytime.inference.latency import profile
from anytime.inference.prediction import UnfinishedError, predict
from anytime.models import create_model
from anytime.network import Network
from anytime.plotting import plot_budgets
from anytime.training.fit import fit

MODEL = "resann-3-8"
DEADLINES = (0.5, 0.75, 1.0, 1.5)
"""As parts of what the whole network takes."""
PREDICTIONS = 50
"""For each deadline."""


@dataclass(frozen=True)
class DeadlineResult:
    """The results of many predictions with the same deadline."""

    share: float
    """The deadline as a part of the time that the whole network takes."""
    milliseconds: float
    exit: float | None
    """Median exit, from 0; None: there was no time for any."""
    in_time: float
    error: float


@app.command()
def demo(
    output: Annotated[Path, Option(help="Folder for the run and the picture.")] = Path("runs/demo"),
    epochs: Annotated[int, Option(help="Number of training epochs.")] = 30,
    threads: Annotated[int, Option(help="Number of CPU threads.")] = 1,
    as_json: Annotated[bool, Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Train a small network on handwritten digits and use it three ways: about a minute.

    Stop every image at the same exit, let easy images leave early, answer before a deadline. Started again, it goes on
    from where it was.

    Examples:
    - `anytime demo --output my-demo`
    """
    use_threads(threads)
    try:
        _demo(output, epochs, as_json)
    except KeyboardInterrupt:
        end_stopped(f"{output} keeps the training so far", "demo", "--output", output, "--epochs", epochs)


def _demo(output: Path, epochs: int, as_json: bool) -> None:
    """Train, then print the tables and draw the picture."""
    data = load_data("digits")
    torch.manual_seed(0)
    net = create_model(MODEL, in_channels=1)
    result = fit(net, data, "adaloss", epochs=epochs, output=output, resume=True, show=not as_json)
    assert result.curve is not None
    net.eval()
    validation, test = (collect(net, data.batches(split)) for split in (data.validation, data.test))
    points = sweep(validation, test, [float(macs) for macs in result.curve.costs.macs])
    kept = _deadlines(net, data)
    if as_json:
        budgets, deadlines = [asdict(point) for point in points], [asdict(each) for each in kept]
        print(json.dumps({**result.curve.record(), "budgets": budgets, "deadlines": deadlines}, indent=1))
        return
    show(stops_table(result.curve, "1. All images stop at the same exit"))
    show(savings_table(result.curve, points, "2. Easy images leave early"))
    last, full = result.curve.errors[-1] or 0.0, result.curve.costs.macs[-1]
    cheapest = min((point.cost for point in points if point.error <= last + 0.002), default=full)
    print(
        f"{cheapest / full:.0%} of the cost gives the error of the whole network, {last:.1%}, to within 0.2 points.\n"
    )
    show(deadlines_table(kept, "3. All 500 test images at once, before a deadline"))
    print(f"Without exits there is no answer before {kept[0].milliseconds / kept[0].share:.1f} ms.\n")
    picture = output / "demo.png"
    with drawing():
        title = "ResANN(3, 8) on handwritten digits"
        print(f"Picture: {plot_budgets(result.curve, {'confidence': points}, picture, title)}")
    say_next("serve", output)


def _deadlines(net: Network, data: Data) -> list[DeadlineResult]:
    """Answer all test images at once before several deadlines, each of them many times."""
    x, labels = next(data.batches(data.test))
    full = profile(net, x).alone[-1]
    return [_kept(net, x, labels, share, full) for share in DEADLINES]


def _kept(net: Network, x: Tensor, labels: Tensor, share: float, full: float) -> DeadlineResult:
    deadline = share * full
    exits, in_time, errors = [], 0, []
    for _ in range(PREDICTIONS):
        start = time.perf_counter()
        try:
            prediction = predict(net, x, deadline=deadline)
        except UnfinishedError:  # no time even for the first exit: counted as late and as wrong
            errors.append(1.0)
            continue
        in_time += time.perf_counter() - start <= deadline
        exits.append(prediction.exit)
        errors.append((prediction.logits.argmax(-1) != labels).double().mean().item())
    median, kept = statistics.median(exits) if exits else None, in_time / PREDICTIONS
    return DeadlineResult(share, 1000 * deadline, median, kept, statistics.mean(errors))
