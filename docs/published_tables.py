"""Our networks against published ones with early exits on CIFAR-10, from the records of the race."""

import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring import results

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
RECORDS = EXPERIMENTS / "records" / "race"
BUDGETS = ("6 M", "7 M", "8 M", "9 M", "10 M", "11 M", "12.5 M")
PUBLISHED = json.loads((EXPERIMENTS / "published.json").read_text(encoding="utf-8"))["accuracy"]
"""Accuracy in % at an average of at most so many multiply-accumulates, on the 10,000 test images."""
IMAGES = 10_000
T_95 = {2: 12.706, 3: 4.303}
"""Student's t, two-sided 95 %, by the number of seeds."""


def final_records(images: str = "all") -> list[dict[str, Any]]:
    """The records of the final networks, seed by seed: trained on all images, or on so many."""
    paths = sorted(RECORDS.glob(f"test-entry-{images}-*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def wilson(share: float, images: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    Examples:
        >>> [round(end, 4) for end in wilson(0.8737, 10_000)]
        [0.8671, 0.8801]
    """
    z = 1.959964
    center = (share + z**2 / (2 * images)) / (1 + z**2 / images)
    half = z / (1 + z**2 / images) * math.sqrt(share * (1 - share) / images + z**2 / (4 * images**2))
    return center - half, center + half


def cell(percent: float | None) -> str:
    """An accuracy with its binomial interval."""
    if percent is None:
        return "–"
    low, high = wilson(percent / 100, IMAGES)
    return f"{percent:.2f} [{100 * low:.1f}, {100 * high:.1f}]"


def over_seeds(values: list[float]) -> str:
    """A mean with Student's t interval over seeds; of one seed its binomial interval."""
    if len(values) == 1:
        return cell(values[0])
    mean, half = statistics.mean(values), T_95[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.2f} ± {half:.2f}"


def against() -> str:
    """Accuracy at each budget: ours over seeds, theirs with binomial intervals."""
    lines = [
        "| accuracy in % at an average of at most | " + " | ".join(BUDGETS) + " |",
        "|---|" + "---:|" * len(BUDGETS),
    ]
    shipped = "the model in this package (45,000 images)"
    for images, way, label in (
        ("all", "as_published", "ours, threshold as theirs"),
        ("all", "held_out_thresholds", "ours, threshold from held-out images"),
        ("all", "per_exit", "ours, thresholds of each exit's own, from held-out images"),
        ("45000", "as_published", f"{shipped}, threshold as theirs"),
        ("45000", "held_out_thresholds", f"{shipped}, threshold from held-out images"),
    ):
        records = final_records(images)
        cells = [
            over_seeds([100 * record[way][i]["accuracy"] for record in records]) if records else "not yet trained"
            for i in range(len(BUDGETS))
        ]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    lines += [f"| {name} | " + " | ".join(map(cell, row)) + " |" for name, row in PUBLISHED.items()]
    return "\n" + "\n".join(lines) + "\n"


def spent() -> str:
    """What the thresholds from held-out images cost on the test images, in millions."""
    records = final_records()
    if not records:
        return "not yet measured"
    means = [statistics.mean(r["held_out_thresholds"][i]["macs"] for r in records) / 1e6 for i in range(len(BUDGETS))]
    return ", ".join(f"{mean:.2f}" for mean in means)


def about() -> str:
    """The network and its training."""
    records = final_records()
    if not records:
        return "No final network has been trained yet."
    first = records[0]
    return (
        f"Ours: {len(records)} {'seed' if len(records) == 1 else 'seeds'}, {first['epochs']} epochs of {first['trained_on']:,} images, "
        f"{first['params']:,} parameters, {first['macs'][-1] / 1e6:.2f} M multiply-accumulates with all exits, about "
        f"{statistics.mean(record['cpu_seconds'] for record in records) / 3600:.1f} hours of one processor core each; "
        f"answers {first['answers']}, exits {', '.join(str(exit + 1) for exit in first['exits'])}; commit {first['commit']}."
    )


def params() -> str:
    """Of our network, in millions."""
    return f"{final_records()[0]['params'] / 1e6:.1f}"


def times() -> str:
    """Milliseconds of the shipped model's exits beside those of plain networks."""
    facts = results("published")["facts"]
    names = [name.removeprefix("eager_").removesuffix("_ms") for name in facts if name.startswith("eager_")]
    labels = {"plain": "the same stages and last head, no exits before it", "ResNet-8": "ResNet-8"}
    lines = ["| ms for one image, one thread | PyTorch | ONNX Runtime | 8-bit integers |", "|---|---:|---:|---:|"]
    for name in names:
        cells = " | ".join(f"{facts[f'{backend}_{name}_ms']:.2f}" for backend in ("eager", "ONNX", "int8"))
        lines.append(f"| {labels.get(name, name.replace('_', ' '))} | {cells} |")
    return "\n" + "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "published": against,
    "published_spent": spent,
    "published_about": about,
    "published_times": times,
    "published_params": params,
}
