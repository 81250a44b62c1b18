"""``anytime select-exits``."""

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
from anytime.network import name_of, weights_device
from anytime.saving import load, save


@app.command("select-exits")
def select_command(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run or a saved model.")],
    exits: Annotated[int, Option(help="How many exits to keep, at most.")] = 5,
    output: Annotated[Path | None, Option(help="Folder for the new model. Default: RUN-EXITS-exits.")] = None,
    data: Annotated[str | None, Option(help="Other images than the run's.")] = None,
    threads: Annotated[int | None, Option(help=THREADS_BY_IMAGE)] = None,
    device: Annotated[str, Option(help=DEVICES)] = "auto",
) -> None:
    """Keep the exits with the smallest expected error under deadlines.

    The errors are those of the validation images, the times those of one image on this machine, now; deadlines are
    uniform up to the time of the last exit. Fewer exits are quicker to export and to combine: do that afterwards.

    Examples:
    - Written to runs/a-5-exits: `anytime select-exits runs/a`
    - `anytime select-exits runs/a --exits 3 --output runs/three`
    """
    target = run.with_name(f"{run.name}-{exits}-exits") if output is None else output
    check_free(target)
    net = load(run).to(device_named(device))
    images = prepared(net, run, data_of(run, data))
    use_threads(threads, images.shape)
    where = weights_device(net)
    selected = anytime.select_exits(net, images.batches(images.validation, device=where), exits).eval()
    asked = asked_of(run)
    about = {key: asked[key] for key in ("data", "size", "fitted_on") if key in asked}
    save(selected, target, model=name_of(selected.config) or "selected", **about)
    kept = ", ".join(str(exit + 1) for exit in selected.selected)
    print(f"Kept exits {kept} of {net.exits}. Wrote {target}")
    say_next("evaluate", target, "--budgets")
