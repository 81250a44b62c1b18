"""Fallback for models whose graph cannot be captured: the model's own code, paused at the exits."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode
from torch.utils._pytree import register_pytree_node

from anytime.conversion.stages import Trunk
from anytime.errors import AnytimeError
from anytime.rows import OwnRows

Place = tuple[str, int]
"""A module's name and which of its calls in a forward pass."""


class _Abandoned(BaseException):
    """Ends a forward pass that was abandoned."""


_listening = threading.local()


def _ended(module: nn.Module, _args: Any, output: Any) -> None:
    """The forward hook of modules at exits: tells the ``CallHook`` that is active in this thread, if any."""
    hook: CallHook | None = getattr(_listening, "hook", None)
    if hook is not None:
        hook.ended(module, output)


class CallHook:
    """A context in which ``tell(place, output)`` is called in this thread at the end of some module calls.

    Args:
        model: the model.
        places: the calls of its modules; None for all.
        tell: the function to call.
    """

    def __init__(self, model: nn.Module, places: Sequence[Place] | None, tell: Callable[[Place, Any], object]) -> None:
        self.places, self.tell = None if places is None else set(places), tell
        wanted = None if places is None else {name for name, _ in places}
        self.names = {m: name for name, m in model.named_modules() if name and (wanted is None or name in wanted)}
        self.calls: dict[str, int] = {}

    def __enter__(self) -> None:
        self.before = getattr(_listening, "hook", None)
        new = [m for m in self.names if _ended not in m._forward_hooks.values()]
        # Hooks at exits stay registered: another thread may be running the model at this moment.
        hooks = [module.register_forward_hook(_ended) for module in new]
        self.temporary = hooks if self.places is None else []
        _listening.hook = self

    def __exit__(self, *_: object) -> None:
        _listening.hook = self.before
        for hook in self.temporary:
            hook.remove()

    def ended(self, module: nn.Module, output: Any) -> None:
        """Count the call of a module that has ended and tell about it if it is wanted."""
        name = self.names.get(module)
        if name is None:
            return
        place = (name, self.calls.get(name, 0))
        self.calls[name] = place[1] + 1
        if self.places is None or place in self.places:
            self.tell(place, output)


class Paused(OwnRows):
    """The state of a network that is paused in its forward pass."""

    def __init__(self, going: "_Going", value: Any) -> None:
        self.going, self.value = going, value

    def entries(self) -> NoReturn:
        """Not possible: the samples are in the local variables of the model's own code."""
        raise AnytimeError(
            "this network was converted without a graph and is paused inside its own code, so samples cannot be taken "
            "out of its batch, nor batches of it joined: use predict, start or steps, and join the inputs instead"
        )

    def with_values(self, values: list[Any]) -> NoReturn:  # noqa: ARG002
        """Not possible, for the same reason."""
        self.entries()


register_pytree_node(Paused, lambda p: ([p.value], p.going), lambda values, going: Paused(going, *values))


class Pause(nn.Module):
    """A stage that lets the model run to its next exit."""

    def __init__(self, trunk: Trunk, places: list[Place], reads: list[str], first: bool) -> None:
        super().__init__()
        self._trunk, self.places, self.reads, self.first = (trunk,), places, reads, first

    def forward(self, state: Any) -> Paused:
        """The state at the next exit."""
        going = _Going(self._trunk[0], state, self.places) if self.first else state.going
        return Paused(going, going.on())

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:  # noqa: ARG002
        """The model's parameters that are first used in this stage."""
        named = dict(self._trunk[0].named_parameters(remove_duplicate=False))
        return (named[name] for name in self.reads)


class _Going:
    """A forward pass in a thread of its own that waits at each exit until the next one is wanted."""

    def __init__(self, trunk: Trunk, x: Any, places: list[Place]) -> None:
        self.baton, self.x = _Baton(), x
        modes = (torch.is_inference_mode_enabled(), torch.is_grad_enabled(), _get_current_dispatch_mode_stack())
        kind = next((p.device.type for p in trunk.parameters()), "cpu")
        cast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        args = (self.baton, trunk, x, places, modes, cast)
        threading.Thread(target=_work, args=args, name="anytime-paused", daemon=True).start()

    def on(self) -> Any:
        """Run to the next exit and return the module's output there."""
        return self.baton.on()

    def __del__(self) -> None:
        self.baton.abandon()


class _Baton:
    """Lets the thread and its caller run in turns."""

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
                with CallHook(trunk.model, places, pause):
                    logits = trunk(x)
            finally:
                for _ in dispatch:
                    _pop_mode()
        baton.give(logits)
    except _Abandoned:
        pass
    except BaseException as error:
        baton.give(None, error)
