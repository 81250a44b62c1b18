"""The command line: ``anytime train``, ``evaluate``, ``calibrate``, ``profile``, ``models``, ``demo``."""

import json
import re
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch

import anytime
from anytime import ranks
from anytime.checkpoint import load
from anytime.data import Data, load_data
from anytime.errors import AnytimeError, require
from anytime.evaluate import FRACTIONS, Curve, evaluate
from anytime.files import read_json, write_json
from anytime.memory import keep_freed_memory
from anytime.network import AnytimeNetwork
from anytime.plot import plot_budgets, plot_curves, plot_learning
from anytime.policy import SCORES, Budgeted, collect, sweep
from anytime.recipe import RECIPES, recipe_for
from anytime.run import read_run
from anytime.table import budgets_table, curve_table, models_table, profile_table, show
from anytime.train import fit

try:
    typer: Any = require("typer", "cli")
    require("rich", "cli")
except AnytimeError as error:
    sys.exit(f"anytime: {error}")

Option = typer.Option
DEVICES = "cpu, cuda, cuda:1, mps …; auto takes an accelerator if there is one."
FIT_OPTIONS = ("epochs", "lr", "batch_size", "accumulate", "precision", "compiled")
DATA = "digits; cifar10, cifar100, svhn, imagenet or any owner/name on the Hugging Face Hub; or a local folder."
SCHEMES = (
    "adaloss, const, linear, half-end, opt-I (exit I alone), geometric-mean, log-barrier; with options as in "
    "adaloss:gamma=0.1"
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Anytime neural networks: train every exit, know what each costs, stop whenever.\n\n"
    "First steps: **anytime demo**",
)


def main() -> NoReturn:
    """Run the command; whatever the user can put right is one line on standard error and exit code 2."""
    try:
        status = app(standalone_mode=False)
    except KeyboardInterrupt:
        status = 130
    except AnytimeError as error:
        status = _complain(str(error))
    except (MemoryError, torch.OutOfMemoryError) as error:
        status = _complain(f"out of memory: {error}")
    except Exception as error:
        if "allocate memory" in str(error) or "not enough memory" in str(error):  # what torch raises on a processor
            sys.exit(_complain(f"out of memory: {str(error).splitlines()[0]}; try something smaller"))
        if not hasattr(error, "format_message"):  # typer's own, about the words of the command
            raise
        status = _complain(f"{error.format_message()} (see: anytime --help)")  # type: ignore[attr-defined]
    sys.exit(status if isinstance(status, int) else 0)


def _complain(message: str) -> int:
    print("anytime: " + " ".join(message.split()), file=sys.stderr)
    return 2


@app.command()
def train(
    model: Annotated[str | None, Option(help="One that `anytime models` lists, or another size: resann-N-C.")] = None,
    data: Annotated[str | None, Option(help=DATA)] = None,
    scheme: Annotated[str | None, Option(help=f"How the exits' losses are weighed: {SCHEMES}.")] = None,
    epochs: Annotated[int | None, Option(help="How often each image is seen.")] = None,
    learning_rate: Annotated[float | None, Option(help="At the start; the recipe says when it falls.")] = None,
    batch_size: Annotated[int | None, Option(help="Images a step.")] = None,
    recipe: Annotated[str | None, Option(help=f"{', '.join(RECIPES)}; otherwise what suits the data.")] = None,
    subset: Annotated[int | None, Option(help="Train on a balanced random part of this many images.")] = None,
    extra: Annotated[bool | None, Option("--extra", help="Add the data's extra training images (SVHN).")] = None,
    size: Annotated[int | None, Option(help="Height and width that images are brought to.")] = None,
    seed: Annotated[int | None, Option(help="Of the first weights, the order of the images and the subset.")] = None,
    output: Annotated[Path | None, Option(help="The run folder; otherwise one in runs/.")] = None,
    resume: Annotated[bool, Option("--resume", help="Go on with the run in the output folder, if any.")] = False,
    checkpoint_seconds: Annotated[float, Option(help="Time between checkpoints; 0: after every step.")] = 30,
    accumulate: Annotated[int | None, Option(help="Cut each batch into so many parts, for less memory.")] = None,
    precision: Annotated[str | None, Option(help="float32; bfloat16, float16 where the device gains from it.")] = None,
    compiled: Annotated[bool | None, Option("--compile", help="Let torch.compile fuse the network.")] = None,
    device: Annotated[str, Option(help=DEVICES)] = "auto",
) -> None:
    """Train a network, all exits together.

    The run folder gets run.json (what was asked for), log.jsonl (a line an epoch), checkpoint.safetensors, and in the
    end config.json + model.safetensors, evaluation.json and curve.png. Ctrl-C saves a checkpoint first.

    Examples:
    - `anytime train --model resann-3-16 --data digits --epochs 20`
    - `anytime train --model resann-7-16 --data cifar10 --scheme const`
    - `anytime train --output runs/digits-resann-3-16-adaloss-seed0 --resume`
    - `torchrun --nproc-per-node 2 -m anytime train --model resann-7-16 --data cifar10` trains on two devices
    """
    given = {
        "model": model, "data": data, "scheme": scheme, "epochs": epochs, "lr": learning_rate, "batch_size": batch_size,
        "recipe": recipe, "subset": subset, "extra": extra, "size": size, "seed": seed,
        "accumulate": accumulate, "precision": precision, "compiled": compiled,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if not checkpoint_seconds >= 0:
        raise AnytimeError(f"--checkpoint-seconds {checkpoint_seconds}: it is 0 or a positive number")
    keep_freed_memory()
    try:
        own = ranks.begin()
        _run(given, output, resume or ranks.restarted(), own or _device(device), checkpoint_seconds)
    finally:
        ranks.end()


def _run(
    given: dict[str, Any], output: Path | None, resume: bool, device: torch.device, checkpoint_seconds: float = 30
) -> tuple[Path, Curve | None]:
    """Train as asked; what was not said comes from the run that is resumed, or else is the default."""
    asked = {"model": "resann-3-16", "data": "digits", "scheme": "adaloss", "seed": 0}
    if resume and output and (output / "run.json").is_file():
        asked |= read_run(output).get("asked", {})
    elif resume and not output and not ranks.restarted():
        raise AnytimeError("--resume needs the run's folder: --output FOLDER")
    asked |= given
    images = _data(asked)
    recipe = asked.get("recipe") or recipe_for(images.name, streamed=not isinstance(images.train, anytime.Images))
    if recipe not in RECIPES:
        raise AnytimeError(f"unknown recipe {recipe!r}; there are: {', '.join(RECIPES)}")
    if not 0 <= asked["seed"] < 2**63:
        raise AnytimeError(f"--seed {asked['seed']}: it is a whole number from 0 and below 2^63")
    torch.manual_seed(asked["seed"])
    net = anytime.create_model(asked["model"], num_classes=len(images.classes), in_channels=images.shape[0]).to(device)
    words = [images.name, asked["model"], asked["scheme"], f"seed{asked['seed']}"]
    folder = output or Path("runs") / re.sub(r"[^\w.=-]+", "-", "-".join(words))
    try:
        result = fit(
            net,
            images,
            asked["scheme"],
            recipe=RECIPES[recipe],
            seed=asked["seed"],
            output=folder,
            resume=resume,
            about={"asked": asked, "command": " ".join(["anytime", *sys.argv[1:]])},
            checkpoint_seconds=checkpoint_seconds,
            **{name: asked[name] for name in FIT_OPTIONS if name in asked},
        )
    except KeyboardInterrupt:
        if ranks.mine() == 0:
            print(f"\nstopped; go on with: anytime train --output {folder} --resume", file=sys.stderr)
        raise
    if ranks.mine() == 0:
        if result.curve is not None:
            show(curve_table(result.curve, _last_weights(folder), title=_title(asked)))
            _draw({asked["scheme"]: folder}, {asked["scheme"]: result.curve}, folder / "curve.png", _title(asked))
        _draw_learning(result.history, folder / "learning.png", _title(asked))
        _say_where(folder)
    return folder, result.curve


def _data(asked: dict[str, Any]) -> Data:
    """The data asked for; the first process decodes, the others find it done."""
    if ranks.mine() > 0:
        ranks.wait()
    images = load_data(asked["data"], size=asked.get("size"), extra=asked.get("extra", False), show=ranks.mine() == 0)
    if ranks.mine() == 0:
        ranks.wait()
    return images.subset(asked["subset"], asked["seed"]) if "subset" in asked else images


@app.command("evaluate")
def evaluate_command(
    run: Annotated[Path, typer.Argument(help="A finished run's folder.")],
    opt: Annotated[
        list[Path] | None,
        Option(help="What exits reach alone: the folder of an opt-I run, or a JSON file {exit: error}. Repeatable."),
    ] = None,
    budgets: Annotated[bool, Option("--budgets", help="Also with easy samples leaving early.")] = False,
    score: Annotated[str, Option(help=f"With --budgets, how sure an exit is: {', '.join(SCORES)}.")] = "confidence",
    as_json: Annotated[bool, Option("--json", help="Print JSON and nothing else.")] = False,
    data: Annotated[str | None, Option(help="Other test images than the run's.")] = None,
    device: Annotated[str, Option(help=DEVICES)] = "auto",
) -> None:  # fmt: skip
    """The anytime curve of a run: each exit's test error and cost, as a table and a plot.

    Below it, the exit chosen at 1/4, 1/2, 3/4 and all of the cost, and with --opt how many more errors each exit
    makes than a network trained for it alone.

    Examples:
    - `anytime evaluate runs/digits-resann-3-16-adaloss-seed0`
    - `anytime evaluate runs/a --opt runs/opt-5 --opt runs/opt-9 --json`
    - `anytime evaluate runs/a --budgets` adds the error against the average cost, with per-sample exits
    """
    if score not in SCORES:
        raise AnytimeError(f"--score {score}; it is one of {', '.join(SCORES)}")
    about = read_run(run)
    asked = about.get("asked", {})
    net = load(run).to(_device(device))
    images = load_data(data or asked.get("data", "digits"), size=asked.get("size"))
    images = _as_trained(run, net, images)
    only = anytime.create_scheme(asked.get("scheme", "const"), net.exits)
    curve = evaluate(net, images, only=getattr(only, "only", None))
    table = _opt_table(opt or [])
    increase = curve.increase_over(table)
    if as_json:
        record = curve.record()
        if table:
            record["increase_over_opt"] = {str(exit + 1): more for exit, more in increase.items()}
        if budgets:
            points = _sweep(net, images, curve, score)
            record["budgets"] = {rule: [asdict(point) for point in found] for rule, found in points.items()}
        print(json.dumps(record, indent=2))
        return
    show(curve_table(curve, _last_weights(run), title=_title(asked), increase=increase))
    for fraction in FRACTIONS:
        exit, error = curve.at(fraction)
        reached = "not evaluated" if error is None else f"{error:.2%} error"
        print(f"at {fraction:4.0%} of the cost: exit {exit + 1} ({curve.costs.fractions[exit]:.1%} used), {reached}")
    name = asked.get("scheme", "run")
    picture = run / ("curve.png" if data is None else f"curve-{images.name}.png")
    _draw({name: run}, {name: curve}, picture, _title({**asked, "data": images.name}))
    if budgets:
        points = _sweep(net, images, curve, score)
        write_json(
            run / "budgets.json", {"score": score, **{r: [asdict(p) for p in found] for r, found in points.items()}}
        )
        title = "easy samples leave early; one threshold for all exits, from the validation images"
        show(budgets_table(points["common"], curve.costs.macs[-1], title))
        with suppress(anytime.MissingExtra):  # said already
            named = {f"{score}, {_RULE_NAMES[rule]}": found for rule, found in points.items()}
            plot_budgets(curve, named, run / "budgets.png", _title({**asked, "data": images.name}))
            print(f"Both curves in one picture: {run / 'budgets.png'}")


_RULE_NAMES = {"common": "one threshold", "geometric": "MSDNet's shares"}


def _sweep(net: AnytimeNetwork, images: Data, curve: Curve, score: str) -> dict[str, list[Budgeted]]:
    if None in curve.errors:
        raise AnytimeError("--budgets needs a network whose exits are all trained, not one of a single exit (opt-I)")
    device = next(net.parameters()).device
    validation, test = (
        collect(net, images.batches(split, device=device)) for split in (images.validation, images.test)
    )
    costs = [float(macs) for macs in curve.costs.macs]
    return {rule: sweep(validation, test, costs, score=score, rule=rule) for rule in _RULE_NAMES}


@app.command("calibrate")
def calibrate_command(
    run: Annotated[Path, typer.Argument(help="A finished run's folder.")],
    budget: Annotated[float, Option(help="Average cost of a sample, as a part of the whole network's: 0.5 is half.")],
    unit: Annotated[str, Option(help="Of the budget: fraction, macs or seconds.")] = "fraction",
    score: Annotated[str, Option(help=f"How sure an exit is: {', '.join(SCORES)}.")] = "confidence",
    device: Annotated[str, Option(help=DEVICES)] = "auto",
) -> None:
    """Find when samples may leave early so that their average cost meets a budget; saved beside the model.

    Thresholds come from the run's validation images; the error is that of its test images.

    Examples:
    - `anytime calibrate runs/digits-resann-3-16-adaloss-seed0 --budget 0.5`
    - `anytime calibrate runs/a --budget 20e6 --unit macs --score margin`
    """
    asked = read_run(run).get("asked", {})
    net = load(run).to(_device(device))
    images = _as_trained(run, net, load_data(asked.get("data", "digits"), size=asked.get("size")))
    where = next(net.parameters()).device
    policy = anytime.calibrate(net, images.batches(images.validation, device=where), budget, unit, score)
    path = policy.save(run)
    test = collect(net, images.batches(images.test, device=where))
    exits = policy.exits(test.logits)
    error = test.wrong[exits, torch.arange(len(exits))].double().mean().item()
    spent = policy.cost(exits)
    share = policy.budget / policy.costs[-1]
    print(
        f"budget {policy.budget:.4g} {policy.unit} a sample ({share:.1%} of the whole network)\n"
        f"on {len(exits):,} test images: {spent:.4g} spent ({spent / policy.budget - 1:+.1%} of the budget), "
        f"{error:.2%} error; all to the last exit: {test.wrong[-1].double().mean().item():.2%}\n"
        f"Wrote {path}; use it with: anytime.Policy.load({str(run)!r}).predict(net, batch)"
    )


def _as_trained(run: Path, net: AnytimeNetwork, images: Data) -> Data:
    """The images normalised as those that the network was trained on, which must be of the same kind."""
    about = (net.config or {}).get("about")
    if not isinstance(about, dict) or not {"data", "classes", "shape", "mean", "std"} <= about.keys():
        raise AnytimeError(f"{run}: config.json does not say what the model was trained on; is it a run's folder?")
    if about["classes"] != images.classes or about["shape"][0] != images.shape[0]:
        raise AnytimeError(
            f"{run} was trained on {about['data']} ({len(about['classes'])} classes, {about['shape'][0]} channels): "
            f"{images.name} has {len(images.classes)} classes and {images.shape[0]} channels, or other classes"
        )
    return replace(images, mean=about["mean"], std=about["std"])


def _opt_table(sources: list[Path]) -> dict[int, float]:
    table: dict[int, float] = {}
    for source in sources:
        if source.is_dir():
            if not str(read_run(source).get("asked", {}).get("scheme", "")).startswith("opt"):
                raise AnytimeError(f"{source} is not the run of one exit alone: train it with --scheme opt-I")
            errors = read_json(source / "evaluation.json").get("errors", [])
            table |= {exit: error for exit, error in enumerate(errors) if error is not None}
        else:
            try:
                table |= {int(exit) - 1: float(error) for exit, error in read_json(source).items()}
            except (TypeError, ValueError):
                raise AnytimeError(f'{source} is not an OPT table; it looks like {{"5": 0.31, "9": 0.28}}') from None
    return table


@app.command()
def profile(
    model: Annotated[str, typer.Argument(help="A model's name, or the folder of a saved one.")],
    size: Annotated[int | None, Option(help="Height and width of the image, if not the model's own.")] = None,
    channels: Annotated[int | None, Option(help="Channels of the image; otherwise 3, or a saved model's.")] = None,
    classes: Annotated[int | None, Option(help="Number of classes; otherwise 10, or ILSVRC's 1000.")] = None,
    batch: Annotated[int, Option(help="Images at once, for the time; MACs are those of one.")] = 1,
    threads: Annotated[int | None, Option(help="Processor threads to use.")] = None,
    repeats: Annotated[int, Option(help="Runs that the median time is taken over.")] = 30,
    device: Annotated[str, Option(help=DEVICES)] = "auto",
    save: Annotated[bool, Option("--save", help="Keep it beside the saved model, for predictions to go by.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """What each exit costs: multiply-accumulates, parameters, measured milliseconds.

    Milliseconds are from the start to the exit's prediction: with all exits before it, and with their heads skipped.
    With --save they go to profile.json beside the model, for this device, these threads and this shape of input.

    Examples:
    - `anytime profile resann-9-16 --classes 100`
    - `anytime profile runs/digits-resann-3-16-adaloss-seed0 --threads 1`
    """
    counts = {"size": size, "channels": channels, "classes": classes, "batch": batch, "repeats": repeats}
    counts |= {"threads": threads}
    for name, value in counts.items():
        if value is not None and value < 1:
            raise AnytimeError(f"--{name} {value}: it is a whole number from 1")
    if threads is not None:
        torch.set_num_threads(threads)
    if save and not Path(model).is_dir():
        raise AnytimeError(f"--save keeps the profile beside a saved model, and {model} is no folder")
    if Path(model).is_dir():
        net = load(model)
        saved = (net.config or {}).get("about", {}).get("shape", [3, None])
        channels, size = channels or saved[0], size or saved[1]
    else:
        options = {} if classes is None else {"num_classes": classes}
        net = anytime.create_model(model, in_channels=channels or 3, **options)
    channels, size = channels or 3, size or net.image_size or 224
    where = _device(device)
    net.to(where).eval()
    cost = anytime.costs(net, torch.empty(1, channels, size, size, device="meta"))
    measured = anytime.profile(net, torch.randn(batch, channels, size, size, device=where), repeats)
    path = measured.save(model) if save else None
    if as_json:
        record = {"macs": cost.macs, "params": cost.params, "seconds": measured.through, "alone": measured.alone}
        print(json.dumps(record, indent=2))
        return
    about = f"{channels}×{size}×{size}, batch {batch}, {where}, {torch.get_num_threads()} threads, median of {repeats}"
    show(profile_table(cost, measured, f"{model}: {about}"))
    if path:
        print(f"Wrote {path}: anytime.predict(anytime.load({model!r}), x, deadline=…) goes by it")


@app.command()
def models(pattern: Annotated[str, typer.Argument(help="Which ones, e.g. 'resann-9-*'.")] = "*") -> None:
    """The networks that can be named, what they cost and where the paper has them.

    Example:
    - `anytime models 'resann-*-32'`
    """
    found = anytime.list_models(pattern)
    if not found:
        raise AnytimeError(f"no model's name matches {pattern!r}; `anytime models` lists them all")
    show(models_table(found))


@app.command()
def demo(
    output: Annotated[Path, Option(help="Where the two runs go.")] = Path("runs/demo"),
    epochs: Annotated[int, Option(help="How often each image is seen.")] = 30,
) -> None:
    """Train a small network on hand-written digits with CONST and with AdaLoss, and compare: about a minute.

    Example:
    - `anytime demo --output my-demo`
    """
    folders, curves = {}, {}
    for scheme in ("const", "adaloss"):
        given = {"model": "resann-3-8", "data": "digits", "scheme": scheme, "epochs": epochs}
        folders[scheme], curve = _run(given, output / scheme, True, torch.device("cpu"))
        if curve is not None:
            curves[scheme] = curve
    picture = output / "curves.png"
    _draw(folders, curves, picture, "ResANN(3, 8) on hand-written digits")
    print(
        f"Both in one picture: {picture}\n\n"
        "CONST weighs all exits alike; AdaLoss moves the weight to the late exits as their losses become small, and\n"
        "the first ones pay for it. Digits are so easy that the late exits gain little; natural images are not."
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        torch.zeros(1, device=name).item()
        return torch.device(name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise AnytimeError(f"--device {name} cannot be used here: {reason}; --device cpu always can") from None


def _last_weights(folder: Path) -> list[float] | None:
    """The loss weights at the end of training, from the log."""
    try:
        lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
        return json.loads(lines[-1])["weights"]
    except (OSError, ValueError, LookupError, TypeError):
        return None  # no log, or a damaged one: the table does without


def _title(asked: dict[str, Any]) -> str:
    return f"{asked.get('model', '')}, {asked.get('scheme', '')}, on {Path(asked.get('data', '')).name}"


def _draw(folders: dict[str, Path], curves: dict[str, Curve], path: Path, title: str) -> None:
    weights = {name: w for name, folder in folders.items() if (w := _last_weights(folder))}
    try:
        plot_curves(curves, path, title, weights)
    except anytime.MissingExtra as error:
        print(f"no plot: {error}", file=sys.stderr)


def _draw_learning(history: list[dict[str, Any]], path: Path, title: str) -> None:
    with suppress(anytime.MissingExtra):  # said already
        plot_learning(history, path, title)


_MEANINGS = {
    "model.safetensors": "the model; anytime.load(folder) reads it",
    "log.jsonl": "a line an epoch: every exit's loss, error, weight",
    "evaluation.json": "the table above",
    "curve.png": "error against cost",
    "learning.png": "loss and error against epochs",
}


def _say_where(folder: Path) -> None:
    print(f"In {folder}/")
    for name, meaning in _MEANINGS.items():
        if (folder / name).exists():
            print(f"  {name:18} {meaning}")
