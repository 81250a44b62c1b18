"""``anytime combine``."""

from pathlib import Path
from typing import Annotated

import anytime
from anytime.cli.app import (
    DEVICES,
    THREADS_BY_IMAGE,
    Option,
    app,
    check_free,
    device_named,
    say_next,
    typer,
    use_threads,
)
from anytime.cli.evaluate import asked_of, data_of, prepared
from anytime.cli.tables import compared_table, show
from anytime.errors import AnytimeError
from anytime.evaluation import collect
from anytime.network import name_of, weights_device
from anytime.saving import load, save

RULES = ("stacking", "ensemble", "product")


@app.command("combine")
def combine_command(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run or a saved model.")],
    rule: Annotated[str, Option(help=f"How: {', '.join(RULES)}.")] = "stacking",
    output: Annotated[Path | None, Option(help="Folder for the new model. Default: RUN-RULE.")] = None,
    data: Annotated[str | None, Option(help="Other images than the run's.")] = None,
    threads: Annotated[int | None, Option(help=THREADS_BY_IMAGE)] = None,
    device: Annotated[str, Option(help=DEVICES)] = "auto",
) -> None:
    """Let every exit of a trained network answer with what all exits so far say together.

    - stacking: a linear function of their logits, fitted on the training images in a minute; mostly the best
    - ensemble: a weighted mean of their log-probabilities, fitted on the validation images
    - product: classes that an exit finds unlikely stay unlikely; answers rarely get worse

    The result is a model of its own: evaluate, calibrate, profile, predict, export and serve take its folder.

    Examples:
    - Written to runs/a-stacking: `anytime combine runs/a`
    - `anytime combine runs/a --rule product --output runs/steady`
    """
    if rule not in RULES:
        raise AnytimeError(f"--rule {rule} must be one of {', '.join(RULES)}")
    target = run.with_name(f"{run.name}-{rule}") if output is None else output
    check_free(target)
    net = load(run).to(device_named(device))
    images = prepared(net, run, data_of(run, data))
    use_threads(threads, images.shape)
    where = weights_device(net)
    fitted_on = {"stacking": images.train, "ensemble": images.validation}.get(rule)
    batches = images.batches(fitted_on, device=where) if rule in ("stacking", "ensemble") else None
    combined = anytime.combine(net, rule, batches).eval()
    before, after = (
        collect(each, images.batches(images.test, device=where)).wrong.double().mean(1).tolist()
        for each in (net, combined)
    )
    asked = asked_of(run)
    about = {key: asked[key] for key in ("data", "size", "fitted_on") if key in asked}
    if rule == "ensemble":  # no risk can be promised with these images any more
        about["fitted_on"] = [*about.get("fitted_on", []), data or asked["data"]]
    save(combined, target, model=name_of(combined.config) or rule, **about)
    show(compared_table(before, after, f"Test errors of {run}", ("each exit's own", rule)))
    print(f"Wrote {target}")
    say_next("evaluate", target, "--budgets")
