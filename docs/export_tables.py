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


def backends(networks: Mapping[str, Mapping[str, Any]]) -> str:
    """Times of the backends to the last exit, divided by PyTorch's: the figures of each network by its name."""
    cells = [
        (f"{name}, batch {batch}", figures, f"batch {batch}: ")
        for name, figures in networks.items()
        for batch in (1, 32)
    ]
    ways = [key.removeprefix(cells[0][2]) for key in cells[0][1] if key.startswith(cells[0][2])]
    lines = [f"| / PyTorch | {' | '.join(title for title, _, _ in cells)} |", "|---|" + "---:|" * len(cells)]
    for way in ways:
        medians = [figures[start + way]["median"] for _, figures, start in cells]
        lines.append(f"| {way.removesuffix(' / PyTorch')} | {' | '.join(f'{median:.2f}' for median in medians)} |")
    return "\n" + "\n".join(lines) + "\n"
