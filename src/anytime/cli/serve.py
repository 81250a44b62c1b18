"""``anytime serve``."""

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anytime
from anytime.cli.app import BACKEND, Option, app, typer
from anytime.errors import AnytimeError, check_integer, check_number, require
from anytime.serving.embedded import FOLDER, NAME, start_engine
from anytime.serving.start import PACKAGES

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from anytime.serving.audit import Auditing
    from anytime.serving.served import Served

FOLDERS = (
    "Folders of runs, saved models or exported networks. "
    "Default: a small model of CIFAR-10 that comes with the package."
)


@app.command()
def serve(
    runs: Annotated[list[Path] | None, typer.Argument(help=FOLDERS)] = None,
    host: Annotated[str, Option(help="Address to listen at; others than this machine's need a token.")] = "127.0.0.1",
    port: Annotated[int, Option(help="Port to listen at; 0 takes a free one.")] = 8000,
    grpc_port: Annotated[int | None, Option(help="Port for gRPC beside HTTP; 0 takes a free one.")] = None,
    backend: Annotated[str, Option(help=BACKEND)] = "auto",
    engines: Annotated[int, Option(help="Processes that compute, for each model.")] = 1,
    queue: Annotated[int, Option(help="Requests that may wait, for each model; more are refused.")] = 256,
    token_file: Annotated[Path | None, Option(help="File with the token that clients must send.")] = None,
    no_auth: Annotated[bool, Option("--no-auth", help="Listen at any address without a token.")] = False,
    drain_seconds: Annotated[float, Option(help="After SIGTERM, go on taking requests for so long while "
                                                "/v2/health/ready says 503.")] = 0.0,
    proxy: Annotated[list[str] | None, Option(help="Address or network of a proxy whose X-Request-Start, "
                                                   "X-Request-Deadline and X-Forwarded-For count; repeatable.")] = None,
    audit: Annotated[float, Option(help="Share of the requests that are also answered by the last exit, when there is "
                                        "time, to see whether leaving early still keeps the promise of `anytime "
                                        "calibrate --risk`; 0 for none.")] = 0.01,
    false_alarms: Annotated[float, Option(help="Chance that an alarm is ever raised though nothing changed.")] = 0.05,
    fall_back: Annotated[bool, Option("--fall-back", help="After an alarm no sample leaves early any more: slower, "
                                                          "and as right as the last exit.")] = False,
    access_log: Annotated[bool, Option(help="One line of JSON per request, on standard error.")] = True,
) -> None:  # fmt: skip
    """Answer requests over HTTP, each before its deadline, with the deepest exit that the load allows.

    The address that it prints shows a page to try it. SIGTERM ends it once admitted requests are answered; SIGHUP loads
    the folders again.

    Examples:
    - `anytime serve`
    - Exported to runs/a/onnx the first time: `anytime serve runs/a --backend onnx`
    - gRPC too: `anytime serve runs/a --grpc-port 8001`
    - `anytime serve runs/a runs/b --port 8080 --engines 2`
    - `curl --data-binary @cat.png 'localhost:8000/predict?deadline=50ms'`
    """
    check_integer("--engines", engines, most=256)
    check_integer("--queue", queue)
    check_integer("--port", port, least=0, most=65535)
    if grpc_port is not None:
        check_integer("--grpc-port", grpc_port, least=0, most=65535)
        require("grpc", "grpc")
        require("google.protobuf", "grpc")
    check_number("--drain-seconds", drain_seconds, most=3600)
    check_number("--audit", audit, most=1)
    check_number("--false-alarms", false_alarms, above=0, below=1)
    for package in PACKAGES:
        require(package, "serve")
    from anytime.serving.audit import Auditing
    from anytime.serving.limits import Limits
    from anytime.serving.server import read_token
    from anytime.serving.server import serve as serve_models

    token = None if token_file is None else read_token(token_file)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("anytime").setLevel(logging.INFO)
    logging.getLogger("anytime.access").disabled = not access_log
    folders = _named(runs or [])
    serve_models(
        partial(_load, folders, backend, engines, queue, Auditing(audit, false_alarms, fall_back)),
        host,
        port,
        grpc_port=grpc_port,
        token=token,
        no_auth=no_auth,
        limits=Limits(drain=drain_seconds),
        proxies=proxy or (),
        version=anytime.__version__,
        say=partial(print, flush=True),
    )


def _named(runs: list[Path]) -> dict[str, Path]:
    """The folders by the names of the models: the last parts of their paths."""
    if not runs:
        return {NAME: FOLDER}
    folders = {run.resolve().name: run for run in runs}
    if len(folders) < len(runs):
        raise AnytimeError(
            f"two of the folders have the same name, which clients would use: {', '.join(map(str, runs))}"
        )
    return folders


def _load(
    folders: dict[str, Path],
    backend: str,
    engines: int,
    queue: int,
    auditing: "Auditing",
    loop: "AbstractEventLoop",
) -> "dict[str, Served]":
    from anytime.serving.served import Served

    make_engine = partial(start_engine, backend=backend, processes=engines, queue=queue, loop=loop)
    return {name: Served(name, folder, partial(make_engine, folder), auditing) for name, folder in folders.items()}
