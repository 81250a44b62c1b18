"""A model that no graph can be captured of, paused inside its own code at the exits."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from anytime.conversion.stages import Trunk
from anytime.errors import AnytimeError

Place = tuple[str, int]
"""A module's name and which of its calls in a forward pass."""


class _Abandoned(BaseException):
    """Nobody wants the rest."""


def first_tensor(output: Any) -> Tensor | None:
    """The tensor that a module's output is, or begins with."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict):
        output = tuple(output.values())
    return first_tensor(output[0]) if isinstance(output, tuple | list) and output else None


_listening = threading.local()


def _ended(module: nn.Module, _args: Any, output: Any) -> None:
    """The hook of modules that are exits; it stays, and says so to whoever listens in this thread."""
    watch: Watch | None = getattr(_listening, "watch", None)
    if watch is not None:
        watch.ended(module, output)


class Watch:
    """While it is entered, ``tell(place, output)`` is called in this thread at the end of these module calls.

    Args:
        model: whose modules.
        places: which calls; None for all.
        tell: what to call.
    """

    def __init__(self, model: nn.Module, places: Sequence[Place] | None, tell: Callable[[Place, Any], object]) -> None:
        self.places, self.tell = None if places is None else set(places), tell
        wanted = None if places is None else {name for name, _ in places}
        self.names = {m: name for name, m in model.named_modules() if name and (wanted is None or name in wanted)}
        self.calls: dict[str, int] = {}

    def __enter__(self) -> None:
        self.before = getattr(_listening, "watch", None)
        new = [m for m in self.names if _ended not in m._forward_hooks.values()]
        # Hooks at exits stay: another thread may be running the model just now.
        hooks = [module.register_forward_hook(_ended) for module in new]
        self.temporary = hooks if self.places is None else []
        _listening.watch = self

    def __exit__(self, *_: object) -> None:
        _listening.watch = self.before
        for hook in self.temporary:
            hook.remove()

    def ended(self, module: nn.Module, output: Any) -> None:
        """Take note of a call's end."""
        name = self.names.get(module)
        if name is None:
            return
        place = (name, self.calls.get(name, 0))
        self.calls[name] = place[1] + 1
        if self.places is None or place in self.places:
            self.tell(place, output)


class Paused:
    """The state of a network that stands still in the middle of its forward pass."""

    def __init__(self, going: "_Going", value: Any) -> None:
        self.going, self.value = going, value

    def take(self, rows: Tensor) -> "Paused":
        """Not possible: the samples are in the model's own variables."""
        raise AnytimeError(
            "this network was converted without a graph and is paused inside its own code, so samples cannot be taken "
            f"out of its batch ({len(rows)} were to stay); use it with predict, start or steps"
        )


class Pause(nn.Module):
    """A stage that lets the model run on to its next exit."""

    def __init__(self, trunk: Trunk, places: list[Place], reads: list[str], first: bool) -> None:
        super().__init__()
        self._trunk, self.places, self.reads, self.first = (trunk,), places, reads, first

    def forward(self, state: Any) -> Paused:
        """The state at the next exit."""
        going = _Going(self._trunk[0], state, self.places) if self.first else state.going
        return Paused(going, going.on())

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:  # noqa: ARG002
        """The model's parameters that are used up to this exit and not before."""
        named = dict(self._trunk[0].named_parameters(remove_duplicate=False))
        return (named[name] for name in self.reads)


class _Going:
    """A forward pass in a thread of its own that waits at each exit to be asked on."""

    def __init__(self, trunk: Trunk, x: Any, places: list[Place]) -> None:
        self.baton, self.x = _Baton(), x
        modes = (torch.is_inference_mode_enabled(), torch.is_grad_enabled(), _get_current_dispatch_mode_stack())
        kind = next((p.device.type for p in trunk.parameters()), "cpu")
        cast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        args = (self.baton, trunk, x, places, modes, cast)
        threading.Thread(target=_work, args=args, name="anytime-paused", daemon=True).start()

    def on(self) -> Any:
        """Run to the next exit and give what is there."""
        return self.baton.on()

    def __del__(self) -> None:
        self.baton.abandon()


class _Baton:
    """Whose turn it is: the thread's, or its caller's."""

    def __init__(self) -> None:
        self.turn, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.value: Any = None
        self.error: BaseException | None = None
        self.abandoned = False

    def on(self) -> Any:
        self.turn.release()
        self.done.acquire()
        if self.error is not None:
            raise self.error
        return self.value

    def wait(self) -> None:
        self.turn.acquire()
        if self.abandoned:
            raise _Abandoned

    def give(self, value: Any, error: BaseException | None = None) -> None:
        self.value, self.error = value, error
        self.done.release()

    def abandon(self) -> None:
        self.abandoned = True
        self.turn.release()


def _work(
    baton: _Baton,
    trunk: Trunk,
    x: Any,
    places: list[Place],
    modes: tuple[bool, bool, list[Any]],
    cast: tuple[str, torch.dtype, bool],
) -> None:
    inference, grad, dispatch = modes

    def pause(_place: Place, output: Any) -> None:
        baton.give(output)
        baton.wait()

    try:
        baton.wait()
        with torch.inference_mode(inference), torch.set_grad_enabled(grad), torch.autocast(*cast):
            for mode in dispatch:
                _push_mode(mode)
            try:
                with Watch(trunk.model, places, pause):
                    logits = trunk(x)
            finally:
                for _ in dispatch:
                    _pop_mode()
        baton.give(logits)
    except _Abandoned:
        pass
    except BaseException as error:
        baton.give(None, error)
