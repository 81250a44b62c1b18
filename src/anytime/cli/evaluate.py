"""``anytime evaluate`` and ``anytime calibrate``."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch

import anytime
from anytime.cli.app import (
    DEVICES,
    THREADS_BY_IMAGE,
    Option,
    app,
    draw_curves,
    drawing,
    last_weights,
    moved,
    say_next,
    title_of,
    typer,
    use_threads,
)
from anytime.cli.tables import budgets_table, curve_table, show
from anytime.data.dataset import Data
from anytime.data.loading import load_data
from anytime.errors import AnytimeError
from anytime.evaluation import FRACTIONS, Curve, collect, evaluate
from anytime.export.backend import is_exported, load_backend
from anytime.files import read_json, write_json
from anytime.inference.calibration import Budgeted, sweep
from anytime.inference.policy import SCORES
from anytime.network import Network, name_of, weights_device
from anytime.plotting import plot_budgets
from anytime.saving import CONFIG
from anytime.tables import millions
from anytime.training.run_folder import read_run

FOLDER = "The folder of a finished run, or of a saved model or an exported network (then with --data)."


@app.command("evaluate")
def evaluate_command(
    run: Annotated[Path, typer.Argument(help=FOLDER)],
    opt: Annotated[
        list[Path] | None,
        Option(
            help="Errors of exits trained alone: an opt-I run's folder, or JSON {exit from 0: error}. Repeatable.",
            metavar="PATH",
        ),
    ] = None,
    budgets: Annotated[bool, Option("--budgets", help="Also evaluate with easy samples leaving early.")] = False,
    cost: Annotated[str, Option(help="What the table shows: macs, or ms too, of one sample on this machine.")] = "macs",
    score: Annotated[str, Option(help=f"How --budgets measures confidence: {', '.join(SCORES)}.")] = "confidence",
    as_json: Annotated[bool, Option("--json", help="Print only JSON.")] = False,
    data: Annotated[str | None, Option(help="Other test images than the run's.")] = None,
    threads: Annotated[int | None, Option(help=THREADS_BY_IMAGE)] = None,
    device: Annotated[str, Option(help=DEVICES)] = "auto",
) -> None:  # fmt: skip
    """The anytime curve of a run: each exit's test error and cost, as a table and a plot.

    Below it, the exit chosen at 1/4, 1/2, 3/4 and all of the cost, and with --opt how many more errors each exit
    makes than a network trained for it alone.

    Examples:
    - `anytime evaluate runs/digits-resann-3-16-adaloss-seed0`
    - `anytime evaluate runs/a --opt runs/opt-5 --opt runs/opt-9 --json`
    - With milliseconds beside the multiply-accumulates: `anytime evaluate runs/a --cost ms`
    - With the error against the average cost if easy samples leave early: `anytime evaluate runs/a --budgets`
    """
    if score not in SCORES:
        raise AnytimeError(f"--score {score} must be one of {', '.join(SCORES)}")
    if cost not in ("macs", "ms"):
        raise AnytimeError(f"--cost {cost} must be macs or ms")
    asked = asked_of(run)
    net = moved(load_backend(run), device)
    images = prepared(net, run, data_of(run, data))
    use_threads(threads, images.shape)
    scheme = asked.get("scheme", "run")
    trained = getattr(anytime.create_scheme(scheme, net.exits), "only", None) if _alone(scheme) else None
    curve = evaluate(net, images, only=trained, cost="seconds" if cost == "ms" else "macs")
    table = _opt_table(opt or [])
    increase = curve.increase_over(table)
    if as_json:
        record = curve.record()
        if table:
            record["increase_over_opt"] = {str(exit): more for exit, more in increase.items()}
        if budgets:
            points = _sweep(net, images, curve, score)
            record["budgets"] = {rule: [asdict(point) for point in found] for rule, found in points.items()}
        print(json.dumps(record, indent=2))
        return
    show(curve_table(curve, last_weights(run), title=title_of(asked), increase=increase))
    for fraction in FRACTIONS:
        print(f"at {fraction:4.0%} of the cost: {_reached(curve, fraction)}")
    picture = run / ("curve.png" if data is None else f"curve-{images.name}.png")
    with drawing():
        draw_curves({scheme: run}, {scheme: curve}, picture, title_of({**asked, "data": images.name}))
    if budgets:
        points = _sweep(net, images, curve, score)
        write_json(
            run / "budgets.json", {"score": score, **{r: [asdict(p) for p in found] for r, found in points.items()}}
        )
        title = "Easy samples leave early; one threshold for all exits, from the validation images"
        show(budgets_table(points["common"], curve.costs.macs[-1], title))
        with drawing():
            named = {f"{score}, {_RULE_NAMES[rule]}": found for rule, found in points.items()}
            plot_budgets(curve, named, run / "budgets.png", title_of({**asked, "data": images.name}))
            print(f"Picture: {run / 'budgets.png'}")
    if None not in curve.errors:
        say_next("calibrate", run, "--budget", 0.5)


def _reached(curve: Curve, fraction: float) -> str:
    """The exit that a fraction of the cost is enough for, if there is one, and its error."""
    exit, error = curve.at(fraction)
    used = curve.spent[exit] / curve.spent[-1]
    if used > fraction:
        return f"no exit yet (the first is at {used:.1%})"
    return f"exit {exit + 1} ({used:.1%} used), {'not evaluated' if error is None else f'{error:.2%} error'}"


_RULE_NAMES = {"common": "one threshold", "geometric": "MSDNet's shares"}


def _sweep(net: Network, images: Data, curve: Curve, score: str) -> dict[str, list[Budgeted]]:
    if None in curve.errors:
        raise AnytimeError("--budgets needs a network whose exits are all trained, not one of a single exit (opt-I)")
    device = weights_device(net)
    validation, test = (
        collect(net, images.batches(split, device=device)) for split in (images.validation, images.test)
    )
    costs = [float(macs) for macs in curve.costs.macs]
    return {rule: sweep(validation, test, costs, score=score, rule=rule) for rule in _RULE_NAMES}


@app.command("calibrate")
def calibrate_command(
    run: Annotated[Path, typer.Argument(help=FOLDER)],
    budget: Annotated[
        float | None, Option(help="Average cost per sample, as a share of the whole network's: 0.5 is half.")
    ] = None,
    risk: Annotated[
        float | None, Option(help="Or the accuracy that may be lost against the last exit: 0.02 is 2 points.")
    ] = None,
    delta: Annotated[
        float | None, Option(help="The chance that more is lost; without it, the mean is bounded.")
    ] = None,
    unit: Annotated[str, Option(help="Unit of the budget: fraction, macs or seconds.")] = "fraction",
    batch_size: Annotated[
        int | None, Option(help="For seconds: how many images are predicted together. Default: 1.")
    ] = None,
    score: Annotated[str, Option(help=f"How an exit's confidence is measured: {', '.join(SCORES)}.")] = "confidence",
    as_json: Annotated[bool, Option("--json", help="Print only JSON.")] = False,
    data: Annotated[str | None, Option(help="Other validation and test images than the run's.")] = None,
    threads: Annotated[int | None, Option(help=THREADS_BY_IMAGE)] = None,
    device: Annotated[str, Option(help=DEVICES)] = "auto",
) -> None:
    """Find the thresholds at which samples leave early, so that their average cost meets a budget or a risk is kept.

    The policy is saved beside the model. Thresholds come from the run's validation images, the error from its test
    images.

    Examples:
    - `anytime calibrate runs/digits-resann-3-16-adaloss-seed0 --budget 0.5`
    - `anytime calibrate runs/a --budget 20e6 --unit macs --score margin`
    - `anytime calibrate runs/a --risk 0.02 --delta 0.05` loses at most 2 points of accuracy with probability 95 %
    """
    if (budget is None) == (risk is None) or (risk is None and delta is not None):
        raise AnytimeError("give either --budget, or --risk with or without --delta (see: anytime calibrate --help)")
    if risk is not None:
        _check_unseen(run, data)
    net = moved(load_backend(run), device)
    images = prepared(net, run, data_of(run, data))
    use_threads(threads, images.shape)
    where = weights_device(net)
    batches = images.batches(images.validation, device=where)
    policy = anytime.calibrate(net, batches, budget, unit, score, risk=risk, delta=delta, batch_size=batch_size)
    path = policy.save(run)
    test = collect(net, images.batches(images.test, device=where))
    exits = policy.choose_exits(test.logits)
    error = test.wrong[exits, torch.arange(len(exits))].double().mean().item()
    whole = test.wrong[-1].double().mean().item()
    spent = policy.cost(exits)
    if as_json:
        record = {"budget": policy.budget, "unit": policy.unit, "whole_cost": policy.costs[-1], "spent": spent}
        record |= {} if risk is None else {"risk": risk, "delta": delta, "lost": error - whole}
        print(json.dumps(record | {"images": len(exits), "error": error, "last_exit_error": whole}, indent=2))
        return
    if risk is not None:
        print(_promise(risk, delta) + ("; no sample leaves early" if policy.shares[-1] == 1 else ""))
    print(
        f"budget {_amount(policy, policy.budget)} per sample ({policy.budget / policy.costs[-1]:.1%} of the whole "
        f"network)\non {len(exits):,} test images: {_amount(policy, spent)} spent ({spent / policy.budget - 1:+.1%} "
        f"against the budget), {error:.2%} error; with all samples at the last exit: {whole:.2%}\n"
        f"Wrote {path}; use it with: anytime.Policy.load({str(run)!r}).predict(net, batch)"
    )
    say_next("serve", run)


def _check_unseen(run: Path, data: str | None) -> None:
    """Refuse to promise a risk with images that something in this model was fitted on."""
    asked = asked_of(run)
    fitted_on = asked.get("fitted_on", [])
    if (run / "run.json").is_file() and read_run(run).get("ensemble"):
        fitted_on = [asked.get("data")]  # the offered exits were chosen with them
    if (data or asked.get("data")) in fitted_on:
        raise AnytimeError(
            f"{run} was fitted on the validation images of {data or asked['data']}, so they promise no risk: name "
            "images that it has not seen with --data, or give a --budget"
        )


def _promise(risk: float, delta: float | None) -> str:
    points = f"{100 * risk:.10g}"
    sure = "on average" if delta is None else f"with probability {100 * (1 - delta):.10g} %"
    return f"at most {points} point{'s' * (points != '1')} of accuracy lost, {sure}"


def _amount(policy: anytime.Policy, cost: float) -> str:
    return f"{millions(cost)} MACs" if policy.unit == "macs" else f"{cost:.4g} seconds"


def asked_of(folder: Path) -> dict[str, Any]:
    """The model, data and scheme of a run; of a model that ``anytime convert`` wrote, its model and data."""
    if is_exported(folder):
        return {}
    if not (folder / "run.json").is_file() and (folder / CONFIG).is_file():
        return read_json(folder / CONFIG, sealed=True).get("about", {})
    run = read_run(folder)
    if "asked" in run:
        return run["asked"]
    # A run of anytime.fit: its facts instead of the options of a command.
    model, data = (part if isinstance(part := run.get(key), dict) else {} for key in ("model", "data"))
    scheme, alone = (
        str(run.get("scheme", "run")),
        re.match(r"OnlyExit\(exits=\d+, exit=(\d+)\)", str(run.get("scheme"))),
    )
    found = {"model": name_of(model), "data": data.get("name")}
    found["scheme"] = f"opt-{int(alone[1]) + 1}" if alone else scheme.partition("(")[0]
    return {key: value for key, value in found.items() if value}


def data_of(run: Path, other: str | None = None, option: str = "--data") -> Data:
    """The data of a run, or others; ``option`` is how the command names others."""
    asked = asked_of(run)
    if not (other or asked.get("data")):
        raise AnytimeError(f"{run} does not say which images it was trained on: name some with {option}")
    try:
        return load_data(other or asked["data"], size=asked.get("size"))
    except AnytimeError as error:
        if other:
            raise
        raise AnytimeError(f"the data of {run}: {error}; name the images with {option}") from error


def prepared(net: Network, run: Path, images: Data) -> Data:
    """The images normalized as those that the network was trained on."""
    if net.preprocessing is None:
        raise AnytimeError(f"{run}: config.json has no preprocessing, so images cannot be normalized as in training")
    return images.matching(net.preprocessing)


def _alone(scheme: str) -> bool:
    """Whether a scheme trains one exit alone."""
    return scheme == "opt" or scheme.startswith("opt-")


def _opt_table(sources: list[Path]) -> dict[int, float]:
    table: dict[int, float] = {}
    for source in sources:
        if source.is_dir():
            if not _alone(str(asked_of(source).get("scheme"))):
                raise AnytimeError(f"{source} is not the run of one exit alone: train it with --scheme opt-I")
            errors = read_json(source / "evaluation.json").get("errors", [])
            table |= {exit: error for exit, error in enumerate(errors) if error is not None}
        elif not source.exists():
            raise AnytimeError(f"--opt {source}: no such file or folder")
        else:
            try:
                table |= {int(exit): float(error) for exit, error in read_json(source).items()}
            except (TypeError, ValueError):
                raise AnytimeError(
                    f'{source} is not an OPT table; it looks like {{"4": 0.31, "8": 0.28}}, exits from 0'
                ) from None
    return table
