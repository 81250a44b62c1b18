"""``anytime.serve``: a server from Python, for a network in memory or the folder of one."""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anytime.errors import check_integer, require
from anytime.network import Network
from anytime.serving.engine import Engine

if TYPE_CHECKING:
    from anytime.serving.served import Served

PACKAGES = ("starlette", "uvicorn", "httptools", "msgspec", "prometheus_client", "PIL")
"""Packages that serving needs."""


def serve(
    net: Network | str | Path,
    port: int = 8000,
    *,
    host: str = "127.0.0.1",
    name: str = "",
    token: str | None = None,
    no_auth: bool = False,
    say: Callable[[str], object] | None = None,
    **options: Any,
) -> None:
    """Answer requests over HTTP, each before its deadline, until Ctrl-C or SIGTERM; the address shows a page to try it.

    A network in memory is put into eval mode and computes in a thread of this process, one in a folder in a process of
    its own.

    Args:
        net: a network, or the folder of a run, a saved model or an exported network.
        port: to listen at; 0 takes a free one.
        host: the address to listen at; others than this machine's need a token, or ``no_auth``.
        name: what clients call the model. Default: the folder's name, or ``model``.
        token: that clients must send as ``Authorization: Bearer …``.
        no_auth: listen at any address without a token.
        say: told ``ready`` and the address once requests can be answered. Default: it is printed.
        options: of the :class:`Engine`: ``example=x`` for a network that does not say which inputs it takes,
            ``policy``, ``accuracy``, ``processes``, ``queue`` and others.

    Examples:
        >>> import anytime
        >>> net = anytime.create_model("resann-1-8")
        >>> anytime.serve(net, port=8000)                                       # doctest: +SKIP
        ready http://127.0.0.1:8000
    """
    check_integer("port", port, least=0, most=65535)
    for package in PACKAGES:
        require(package, "serve")
    from anytime.serving.server import serve as serve_models

    folder = Path(net) if isinstance(net, str | Path) else None
    if isinstance(net, Network):
        net.eval()
        options = {"processes": 0, **options}
    called = name or (folder.resolve().name if folder else "model")

    def load(loop: AbstractEventLoop) -> "dict[str, Served]":
        from anytime.serving.served import Served

        return {called: Served(called, folder, lambda: Engine(net, loop=loop, **options))}

    serve_models(load, host, port, token=token, no_auth=no_auth, say=say or partial(print, flush=True))
