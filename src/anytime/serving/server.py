"""The server process: sockets, signals, and an orderly end."""

import asyncio
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import torch
import uvicorn
from uvicorn.loops.auto import auto_loop_factory

from anytime.errors import AnytimeError
from anytime.files import read_file
from anytime.memory import steady
from anytime.serving.app import create_app
from anytime.serving.arrival import Proxies
from anytime.serving.connection import bounded
from anytime.serving.limits import Limits
from anytime.serving.rehearsal import rehearse
from anytime.serving.served import Served
from anytime.serving.service import Service

if TYPE_CHECKING:
    from anytime.serving.rpc import RpcServer

LOG = logging.getLogger("anytime.serving")
SWITCH = 0.001
"""Python's switch interval in seconds: short, so that the engine's answers do not wait for other threads."""
ACCEPTED = 8
"""New connections in one round of the event loop."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    models: Callable[[asyncio.AbstractEventLoop], Mapping[str, Served]],
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    grpc_port: int | None = None,
    token: str | None = None,
    no_auth: bool = False,
    limits: Limits | None = None,
    proxies: Iterable[str] = (),
    version: str = "",
    say: Callable[[str], object] = print,
) -> None:
    """Serve models until SIGTERM or SIGINT; SIGHUP loads them again.

    Args:
        models: loads them, by name, for an event loop; called once the port is known to be free.
        host: the address to listen at. Other than the machine's own need a token, or ``no_auth``.
        port: 0 takes a free one.
        grpc_port: for gRPC too, at the same address; None: only HTTP.
        token: that clients must send as ``Authorization: Bearer …``.
        no_auth: listen at any address without a token.
        limits: what clients may ask for.
        proxies: addresses and networks in front whose word about clients and moments counts.
        version: of the library, for clients that ask.
        say: told the address once requests can be answered.
    """
    local = host in LOOPBACK
    if not local and token is None and not no_auth:
        raise AnytimeError(
            f"--host {host}: other machines could use this server; give a --token-file that clients must know, or "
            "write --no-auth"
        )
    limits, trusted = within_files(limits or Limits()), Proxies(proxies)
    torch.set_num_threads(1)  # the engines compute
    with ExitStack() as stack:
        listener = stack.enter_context(bound_socket(host, port))
        runner = stack.enter_context(asyncio.Runner(loop_factory=auto_loop_factory()))
        name = f"[{host}]" if ":" in host else host
        rpc = None if grpc_port is None else runner.run(_rpc_server(f"{name}:{grpc_port}", limits, token))
        loaded = models(runner.get_loop())
        for served in loaded.values():
            stack.callback(lambda served=served: served.loaded.engine.close(drain=False))
        service = Service(loaded, limits, rush=local, version=version, proxies=trusted)
        app = create_app(service, token, LOOPBACK if local and token is None and not no_auth else ())
        config = uvicorn.Config(
            app,
            http=bounded(service),
            proxy_headers=bool(trusted.networks),
            forwarded_allow_ips=[str(network) for network in trusted.networks],
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=2048,
            timeout_keep_alive=int(limits.idle),
            timeout_graceful_shutdown=5,
        )
        address = f"http://{name}:{listener.getsockname()[1]}" + (f" grpc {rpc.address}" if rpc else "")
        runner.run(Server(config, service, lambda: say(f"ready {address}"), rpc).serve(several(listener)))


async def _rpc_server(address: str, limits: Limits, token: str | None) -> "RpcServer":
    from anytime.serving.rpc import RpcServer  # needs the extra grpc

    return RpcServer(address, limits, token)


def within_files(limits: Limits) -> Limits:
    """Limits whose connections leave a quarter of the files that this process may open to everything else."""
    if sys.platform == "win32":  # which has no such limit
        return limits
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limits.connections if files == resource.RLIM_INFINITY else min(limits.connections, 3 * files // 4)
    return replace(limits, connections=most)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket bound to an address, which does not listen yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise AnytimeError(f"--host {host}: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError) as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _cannot_listen(host: str, port: int, error: Exception) -> AnytimeError:
    return AnytimeError(f"cannot listen at {host}, port {port}: {error}; choose another --port")


def several(listener: socket.socket) -> list[socket.socket]:
    """A listener with copies: in each round of the event loop libuv accepts one connection of each."""
    return [listener, *(listener.dup() for _ in range(ACCEPTED - 1))]


def read_token(path: Path) -> str:
    """The token in a file: its first line."""
    try:
        token = read_file(path).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AnytimeError(f"cannot read a token from {path}: {error}") from error
    if len(token) < 16 or any(character.isspace() for character in token):
        raise AnytimeError(
            f"{path} must hold one token of at least 16 characters; this makes one: openssl rand -hex 32 > {path}"
        )
    return token


class Server(uvicorn.Server):
    """uvicorn with graceful shutdown: nothing new is admitted, what is admitted is answered, and the exit code is 0."""

    def __init__(
        self, config: uvicorn.Config, service: Service, ready: Callable[[], object], rpc: "RpcServer | None" = None
    ) -> None:
        super().__init__(config)
        self.service, self._ready, self._rpc = service, ready, rpc
        self._background: set[asyncio.Task[None]] = set()
        self._ending = False

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals until the end; unlike uvicorn's, none is raised again afterwards."""
        if threading.current_thread() is not threading.main_thread():  # which alone receives signals
            yield
            return
        handlers = {signal.SIGINT: self.handle_exit, signal.SIGTERM: self.handle_exit}
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = self._handle_reload
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, warm up, then say so."""
        self._loop = asyncio.get_running_loop()
        for listener in sockets or ():
            # Several sockets may be bound to a port until one of them listens; uvloop hides the error of the others.
            try:
                listener.listen(self.config.backlog)
            except OSError as error:
                host, port = listener.getsockname()[:2]
                raise _cannot_listen(host, port, error) from error
        await super().startup(sockets)
        for served in self.service.models.values():
            await served.warm_up()
        await rehearse(self.service)
        if self._rpc is not None:
            await self._rpc.start(self.service)
        steady()
        sys.setswitchinterval(SWITCH)
        self.service.ready = not self.service.draining
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the sockets, and what is still open after the grace."""
        await super().shutdown(sockets)
        if self._rpc is not None:
            await self._rpc.stop(grace=1.0)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Shut down gracefully; a second signal ends at once."""
        if self._ending:
            self.should_exit = self.force_exit = True
            return
        self._ending = True
        # Ctrl-C is no deployment: nobody has to notice first.
        self._soon(partial(self._end, self.service.limits.drain if sig == signal.SIGTERM else 0.0))

    def _handle_reload(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._soon(self._reload)

    def _soon(self, work: Callable[[], object]) -> None:
        """Start work in the event loop, from a signal handler."""

        def start() -> None:
            task = asyncio.ensure_future(work())  # type: ignore[arg-type]
            self._background.add(task)
            task.add_done_callback(self._background.discard)

        self._loop.call_soon_threadsafe(start)

    async def _end(self, seconds: float) -> None:
        """Take requests for some more seconds while ``ready`` says 503; then close the socket and answer what is here.

        Args:
            seconds: until whoever asks for ``ready`` sends no more.
        """
        self.service.ready = False
        if seconds:
            self.service.leaving = True
            await asyncio.sleep(seconds)
        for server in self.servers:
            server.close()
        self.service.drain()
        end = time.monotonic() + self.service.limits.deadline
        self._loop.call_later(self.service.limits.grace, self.service.refuse_others)
        if self._rpc is not None:
            await self._rpc.leave(self.service.limits.deadline)
        while (self.service.exchanges or (self._rpc and self._rpc.open)) and time.monotonic() < end:
            await asyncio.sleep(0.01)
        self.should_exit = True

    async def _reload(self) -> None:
        for served in self.service.models.values():
            try:
                await served.reload()
                LOG.info("loaded %s again", served.name)
            except AnytimeError as error:  # the old model goes on
                LOG.error("could not load %s again: %s", served.name, error)
