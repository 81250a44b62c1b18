"""Tables of docs/export.md, made of a record's facts."""

from collections.abc import Mapping
from typing import Any


def int8(found: Mapping[str, float]) -> str:
    """Errors of the exits of an exported network in floats and in 8-bit integers."""
    lines = ["| exit | float32 | int8 | points |", "|---:|---:|---:|---:|"]
    for exit in range(1, sum(key.startswith("int8_") for key in found)):  # one of them is its size
        before, after = (100 * found[f"{name}_{exit}"] for name in ("float32", "int8"))
        lost = f"{after - before:+.2f}".replace("-", "−")
        lines.append(f"| {exit} | {before:.2f} % | {after:.2f} % | {lost} |")
    return "\n" + "\n".join(lines) + "\n"


def backends(figures: Mapping[str, Any]) -> str:
    """Times of the backends to the last exit, divided by PyTorch's, at batches of 1 and 32."""
    lines = ["| | batch 1 | batch 32 |", "|---|---:|---:|"]
    for key in figures:
        batch, _, way = key.partition(": ")
        if batch == "batch 1":
            medians = [figures[f"{batch}: {way}"]["median"] for batch in ("batch 1", "batch 32")]
            lines.append(f"| {way} | {' | '.join(f'{median:.2f}' for median in medians)} |")
    return "\n" + "\n".join(lines) + "\n"
