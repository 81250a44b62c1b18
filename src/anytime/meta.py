"""The meta device: modules run on tensors that have a shape and no values, so they need no memory and no time."""

import copy
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

M = TypeVar("M", bound=nn.Module)
F = TypeVar("F", bound=Callable[..., Any])


def shapes(example: Any) -> Any:
    """An input of the same shapes on the meta device."""
    return tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, example)


def shapes_later(example: Any) -> Callable[[], Any]:
    """A function that returns ``shapes(example)`` and does not keep the example itself."""
    if isinstance(example, Tensor):  # most are: noting a shape takes less time than making a tensor of it
        return partial(torch.empty, example.shape, dtype=example.dtype, device="meta")
    given = shapes(example)
    return lambda: given


def on_meta(net: M) -> M:
    """A copy on the meta device, without hooks."""
    memo: dict[int, Any] = {}
    for parameter in net.parameters():
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
    for buffer in net.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    for module in net.modules():  # hooks are not meant for the copy, and may hold what cannot be copied
        for hooks in (module._forward_pre_hooks, module._forward_hooks, module._backward_hooks):
            memo[id(hooks)] = OrderedDict()
    return copy.deepcopy(net, memo)


def changes_input(module: nn.Module, *inputs: Any) -> bool:
    """Whether a module changes its inputs in place; tried out once in each of its two modes, on the meta device.

    A module that cannot run there is taken for one that does, and so is any while a compiler looks on: compilers
    remove the needless copy. Modules made of well-known layers are not tried out: a trial takes a millisecond, the
    first one in a process nearly a second, and deadlines are missed by that.
    """
    name = "_changes_input_in_training" if module.training else "_changes_input"  # dropout works in training alone
    known = vars(module).get(name)
    if known is None and not torch.compiler.is_compiling():
        known = vars(module)[name] = not _keeps(module) and _try_out(module, inputs)
    return known is not False


def keeps_input(forward: F) -> F:
    """Mark the ``forward`` of a module that does not change its inputs in place if its submodules do not."""
    forward.keeps_input = True  # type: ignore[attr-defined]
    return forward


_NEW = {nn.Linear, nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d}
_NEW |= {getattr(nn, name) for name in nn.modules.conv.__all__ if not name.startswith("Lazy")}
"""Layers that return a new tensor and leave their input as it is."""
_PLAIN = {nn.Identity, nn.Flatten, nn.ReLU, nn.GELU, nn.Dropout, nn.AdaptiveAvgPool2d}
"""Layers that leave their input as it is, unless they are told to work in place; they may return it."""


def _keeps(module: nn.Module) -> bool:
    kind = type(module)
    if kind in _NEW:
        return True
    if kind in _PLAIN:
        return not getattr(module, "inplace", False)
    if kind.forward is not nn.Sequential.forward and not getattr(kind.forward, "keeps_input", False):
        return False
    for child in module.children():
        if not _keeps(child):
            return False
        if isinstance(module, nn.Sequential) and type(child) in _NEW:
            return True  # the layers after it do not see the input
    return True


def _try_out(module: nn.Module, inputs: tuple[Any, ...]) -> bool:
    try:
        # Without the modes of the caller: in inference mode tensors do not count their changes, and a counter of
        # operations must not count these.
        with _disable_current_modes(), torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng([]):
            given = shapes(inputs)
            tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]
            before = [tensor._version for tensor in tensors]
            on_meta(module)(*given)
            return before != [tensor._version for tensor in tensors]
    except Exception:
        return True
