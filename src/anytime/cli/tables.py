"""Tables, drawn with rich."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from anytime.cost import Costs, counting
from anytime.errors import require
from anytime.evaluation import FRACTIONS, Curve
from anytime.inference.calibration import Budgeted
from anytime.inference.latency import Profile
from anytime.inference.prediction import Prediction
from anytime.models import create_model
from anytime.network import Network, eval_mode
from anytime.serving.planning import Forecast
from anytime.tables import millions


def show(table: Any) -> None:
    """Print a table to standard output; as wide as needed if that is not a terminal."""
    console = require("rich.console", "cli").Console()
    if not console.is_terminal:
        console.width = 200
    console.print(table)


def _table(title: Any, *columns: str) -> Any:
    table = require("rich.table", "cli").Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column in ("model", "source", "class") else "right")
    return table


def curve_table(
    curve: Curve,
    weights: list[float] | None = None,
    title: str = "",
    increase: dict[int, float] | None = None,
    places: list[str] | None = None,
) -> Any:
    """For each exit MACs, share of the cost, test error; if given ms, loss weight, increase over OPT and place."""
    columns, seconds = ["exit", "MACs", "% of cost", "test error"], curve.seconds
    columns[1:1] = ["ms", "% of ms"] if seconds else []
    columns += ["weight"] if weights else []
    columns += ["over OPT"] if increase else []
    columns += ["place"] if places else []
    table = _table(title, *columns)
    for i, (macs, share, error) in enumerate(zip(curve.costs.macs, curve.costs.fractions, curve.errors, strict=True)):
        row = [str(i + 1), millions(macs), f"{share:.1%}", "–" if error is None else f"{error:.2%}"]
        row[1:1] = [f"{1000 * seconds[i]:.2f}", f"{seconds[i] / seconds[-1]:.1%}"] if seconds else []
        row += [f"{weights[i]:.3f}"] if weights else []
        row += [f"{increase[i]:+.1%}" if i in increase else ""] if increase else []
        row += [places[i]] if places else []
        table.add_row(*row)
    return table


def profile_table(cost: Costs, profile: Profile, title: str, others: Mapping[str, Profile] | None = None) -> Any:
    """For each exit cumulative MACs, parameters and milliseconds; those of other backends beside them."""
    others = others or {}
    times = ("ms, all heads", "ms, this head only")  # up to the exit: with the heads of earlier ones, and without
    names = [f"{name} {what}" for name in others for what in times]
    table = _table(title, "exit", "MACs", "% of cost", "parameters", *times, *names)
    profiles = [profile, *others.values()]
    for i, (macs, share, params) in enumerate(zip(cost.macs, cost.fractions, cost.params, strict=True)):
        times = [f"{1000 * seconds[i]:.2f}" for each in profiles for seconds in (each.through, each.alone)]
        table.add_row(str(i + 1), millions(macs), f"{share:.1%}", millions(params), *times)
    return table


def budgets_table(points: list[Budgeted], full: float, title: str) -> Any:
    """For each budget the average cost, the error, and where the samples left."""
    table = _table(title, "budget", "spent", "test error", "median exit", "left at the first", "at the last")
    for point in points:
        middle = next(i for i in range(len(point.shares)) if sum(point.shares[: i + 1]) >= 0.5)
        row = [f"{point.budget / full:.1%}", f"{point.cost / full:.1%}", f"{point.error:.2%}", str(middle + 1)]
        table.add_row(*row, f"{point.shares[0]:.1%}", f"{point.shares[-1]:.1%}")
    return table


def prediction_table(classes: list[tuple[str, float]], prediction: Prediction, exits: int, title: str) -> Any:
    """Class and probability; exit and milliseconds of the prediction."""
    text = require("rich.text", "cli").Text  # names are not markup
    table = _table(text(title), "class", "probability", "exit", "milliseconds")
    for i, (name, probability) in enumerate(classes):
        answered = [f"{prediction.exit + 1} of {exits}", f"{1000 * prediction.seconds:.2f}"] if i == 0 else ["", ""]
        table.add_row(text(name), f"{probability:.1%}", *answered)
    return table


def models_table(models: dict[str, str]) -> Any:
    """Model, image size, exits, MACs and parameters (10 classes; ImageNet models 1000), and where it is from."""
    table = _table("", "model", "image", "exits", "MACs", "parameters", "source")
    for name, source in models.items():
        with torch.device("meta"):
            net = create_model(name)
        size = net.image_size or 224
        params = sum(parameter.numel() for parameter in net.parameters())
        row = [f"{size}×{size}", str(net.exits), millions(total_macs(net, size)), millions(params), source]
        table.add_row(name, *row)
    return table


def total_macs(net: Network, size: int) -> int:
    """The last of ``costs(net, …).macs``, sooner; the network is on the meta device and is changed."""
    for module in list(net.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):  # no MACs, and on the meta device most of the time
                setattr(module, name, nn.Identity())
    with eval_mode(net), torch.no_grad(), counting() as counter:
        net(torch.empty(1, 3, size, size, device="meta"))
    return counter.get_total_flops() // 2


def stops_table(curve: Curve, title: str) -> Any:
    """The exit that each part of the cost is enough for, and its error."""
    table = _table(title, "of the cost", "exit", "spent", "test error")
    for fraction in FRACTIONS:
        exit, error = curve.at(fraction)
        used = curve.costs.fractions[exit]
        enough = used <= fraction
        row = [str(exit + 1), f"{used:.0%}", f"{error:.1%}"] if enough else ["–", f"the first needs {used:.0%}", "–"]
        table.add_row(f"{fraction:.0%}", *row)
    return table


def savings_table(curve: Curve, points: list[Budgeted], title: str) -> Any:
    """The error at parts of the cost if easy samples leave early, and where they leave."""
    table, full = _table(title, "of the cost", "left at the first exit", "spent", "test error"), curve.costs.macs[-1]
    for fraction in FRACTIONS:
        early = min(points, key=lambda point: abs(point.cost - fraction * full))
        row = [f"{early.shares[0]:.0%}", f"{early.cost / full:.0%}", f"{early.error:.1%}"]
        table.add_row(f"{fraction:.0%}", *row)
    return table


def deadlines_table(kept: list[Any], title: str) -> Any:
    """For each deadline how many predictions kept it, from which exit, with which error."""
    table = _table(title, "deadline", "of the whole network's time", "in time", "median exit", "test error")
    for each in kept:
        row = [f"{each.milliseconds:.1f} ms", f"{each.share:.0%}", f"{each.in_time:.0%}"]
        table.add_row(*row, "–" if each.exit is None else f"{each.exit + 1:g}", f"{each.error:.1%}")
    return table


def compared_table(before: list[float], after: list[float], title: str, names: tuple[str, str]) -> Any:
    """The test error of each exit before and after a change of the model."""
    table = _table(title, "exit", *names, "points")
    for exit, (a, b) in enumerate(zip(before, after, strict=True), start=1):
        table.add_row(str(exit), f"{a:.2%}", f"{b:.2%}", f"{100 * (b - a):+.2f}")
    return table


def plan_table(forecasts: Sequence[Forecast], chosen: Forecast | None, threads: int, title: str) -> Any:
    """For each number of engine processes what clients would see."""
    columns = ["engines", "threads each", "cores", "refused", "late", "exit, 10 % / median / 90 %", "accuracy", ""]
    table = _table(title, *columns)
    for each in forecasts:
        exits = " / ".join(str(_quantile(each.exits, share) + 1) for share in (0.1, 0.5, 0.9))
        accuracy = "–" if each.accuracy is None else f"{each.accuracy:.1%}"
        row = [str(each.engines), str(threads), str(each.engines * threads + 1), f"{each.refused:.1%}"]
        table.add_row(*row, f"{each.late:.1%}", exits, accuracy, "enough" if each is chosen else "")
    return table


def _quantile(shares: Sequence[float], share: float) -> int:
    """The first exit up to which at least so large a share of the answers comes."""
    reached = 0.0
    for exit, each in enumerate(shares):
        reached += each
        if reached >= share - 1e-9:
            return exit
    return len(shares) - 1
