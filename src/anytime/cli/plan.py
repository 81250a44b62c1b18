"""``anytime plan``."""

import json
from pathlib import Path
from typing import Annotated, Any

from anytime.cli.app import Option, app, typer
from anytime.cli.tables import plan_table, show
from anytime.errors import check_integer, check_number
from anytime.serving.deadlines import seconds


@app.command()
def plan(
    run: Annotated[Path, typer.Argument(help="Folder of a run or a saved model.")],
    rate: Annotated[float, Option(help="Requests per second, on average.")],
    deadline: Annotated[str, Option(help="Of each request, such as 50ms.")],
    engines: Annotated[
        int | None, Option(help="Only this number of engine processes. Default: as many as help.")
    ] = None,
    threads: Annotated[int, Option(help="Threads of each process.")] = 1,
    tolerate: Annotated[float, Option(help="Share of the requests that may be refused or late.")] = 0.01,
    queue: Annotated[int, Option(help="Requests that may wait, as anytime serve has it.")] = 256,
    requests: Annotated[int, Option(help="Number of simulated requests.")] = 2000,
    backend: Annotated[str, Option(help="eager (PyTorch) or onnx (ONNX Runtime), if it was exported.")] = "eager",
    as_json: Annotated[bool, Option("--json", help="Print only JSON.")] = False,
) -> None:
    """How many engine processes a load needs, and which exits answer then.

    A simulation with the engine's own decisions and admission, on the times in batch_times.json beside the model, which
    are measured and saved if there are none. Arrivals are random (Poisson). HTTP, decoding of images and early exit by
    a policy are not part of it: the process in front of the engines needs a core of its own.

    Examples:
    - `anytime plan runs/a --rate 300 --deadline 50ms`
    - `anytime plan runs/a --rate 300 --deadline 50ms --engines 2 --json`
    """
    from anytime.serving.model import Model, saved_accuracy
    from anytime.serving.planning import MOST_ENGINES, enough, forecast, forecasts, times_of
    from anytime.serving.ways import make_tables

    limit = check_number("--deadline, in seconds,", seconds(deadline), above=0)
    check_number("--rate", rate, above=0)
    check_number("--tolerate", tolerate, most=1)
    for name, count in (("threads", threads), ("queue", queue), ("requests", requests)):
        check_integer(f"--{name}", count)
    model = Model.of(run, None, None, None, None, backend)
    measured = saved_accuracy(run, len(model.accuracy)) is not None
    times = times_of(model, threads, largest=32)
    tables = make_tables(times, model.accuracy, 32, every=model.policy is not None)
    options: dict[str, Any] = {"requests": requests, "queue": queue}
    if engines is None:
        found = forecasts(tables, rate, limit, measured, tolerate, **options)
    else:
        count = check_integer("--engines", engines, most=MOST_ENGINES)
        found = [forecast(tables, rate, limit, count, measured, **options)]
    chosen = enough(found, tolerate)
    if as_json:
        print(json.dumps(_record(found, chosen, rate, limit, threads), indent=2))
        return
    where = times.kind.device if times.kind else "times without a device"
    show(plan_table(found, chosen, threads, f"{run}: {rate:g} requests/s, deadline {deadline}; {where}"))
    if chosen is None:
        full = f"no number of engines up to {found[-1].engines}" if engines is None else f"{engines} engines do not"
        print(f"{full} keep {1 - tolerate:.1%} in time: a longer deadline, a lower rate or a faster machine would")
    else:
        print(f"anytime serve {run} --engines {chosen.engines}   # {_cores(chosen.engines, threads)} cores")


def _cores(engines: int, threads: int) -> int:
    """Those of the engines, and one for HTTP."""
    return engines * threads + 1


def _record(found: list[Any], chosen: Any, rate: float, deadline: float, threads: int) -> dict[str, Any]:
    rows = [
        {
            "engines": each.engines,
            "threads": threads,
            "cores": _cores(each.engines, threads),
            "refused": each.refused,
            "late": each.late,
            "exits": each.exits,
            "accuracy": each.accuracy,
        }
        for each in found
    ]
    engines = None if chosen is None else chosen.engines
    return {"rate": rate, "deadline": deadline, "engines": engines, "outcomes": rows}
