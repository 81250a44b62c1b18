"""What each exit costs: multiply-accumulates and parameters. (Seconds are in ``inference/latency.py``.)"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from anytime.errors import AnytimeError, check_number
from anytime.inputs import as_input
from anytime.meta import on_meta, shapes
from anytime.network import Network, eval_mode, tensors_of, weights_device
from anytime.tables import Table, millions, share


@dataclass(frozen=True)
class Costs:
    """Cumulative costs, one number per exit, shallow to deep; the heads of earlier exits are included."""

    macs: list[int]
    """Multiply-accumulates of convolutions, linear layers, matrix products and attention. (Papers that count a
    multiplication and an addition each as a FLOP have twice this.)"""
    params: list[int]
    """Parameters of the stages and heads that have run by then."""
    heads: list[int] = field(default_factory=list)
    """MACs of each head, not cumulative; they are included in ``macs``."""

    def _repr_html_(self) -> str:
        counts = zip(self.macs, self.fractions, self.params, strict=True)
        rows = [[str(n), millions(m), share(part), millions(p)] for n, (m, part, p) in enumerate(counts, start=1)]
        return Table(["exit", "MACs", "% of cost", "parameters"], rows, "Cost up to each exit").html()

    @property
    def alone(self) -> list[int]:
        """MACs up to each exit when the heads of the exits before it are skipped.

        Examples:
            >>> Costs(macs=[46, 80, 100], params=[1, 2, 3], heads=[2, 2, 2]).alone
            [46, 78, 96]
        """
        skipped = accumulate(self.heads[:-1], initial=0) if self.heads else [0] * len(self.macs)
        return [macs - heads for macs, heads in zip(self.macs, skipped, strict=True)]

    @property
    def fractions(self) -> list[float]:
        """Share of the total MACs that each exit has used; 0 if none are counted at all."""
        return [macs / max(self.macs[-1], 1) for macs in self.macs]

    def exit_at(self, fraction: float) -> int:
        """The last exit within a fraction of the total MACs; the first exit if even that one costs more.

        Args:
            fraction: above 0 and at most 1.

        Examples:
            >>> Costs(macs=[46, 80, 100], params=[1, 2, 3]).exit_at(0.75)
            0
        """
        check_number("fraction", fraction, above=0, most=1)
        within = [i for i, macs in enumerate(self.macs) if macs <= fraction * self.macs[-1]]
        return within[-1] if within else 0


def costs(net: Network, example: Any) -> Costs:
    """MACs and parameters up to each exit, counted on the meta device: no memory, no compute.

    Args:
        net: the network, on any device; it is not changed.
        example: an input as the network takes it, on any device; only its shape counts. MACs are those of the
            whole example, so pass a batch of one.

    Examples:
        >>> import anytime
        >>> net = anytime.create_model("resann-9-16", num_classes=100)
        >>> f"{anytime.costs(net, torch.zeros(1, 3, 32, 32)).macs[-1] / 1e6:.1f} million"
        '125.6 million'
    """
    if not isinstance(net, Network):
        raise AnytimeError(
            f"costs expects an AnytimeNetwork, not a {type(net).__name__}: anytime.convert(model, example) makes one"
        )
    example = as_input(net, example)
    if (stated := net.stated_costs(example)) is not None:
        return stated
    if not net.paused_because:
        try:
            return _counted(on_meta(net), shapes(example), count_params(net.units))
        except RuntimeError:  # a shape that depends on the data, or a tensor that is not on the meta device
            pass
    return _counted(net, tree_map(lambda leaf: _real(leaf, net), example))


def check_known(net: Network, example: Any) -> None:
    """Raise if ``costs`` will, since an exported network knows them for one size of inputs; takes no time."""
    net.stated_costs(example)


def known_costs(net: Network, example: Any) -> Costs:
    """The result of ``costs``, counted once per form of input and kept on the network until ``net.forget()``."""
    known: dict[Form, Costs] = vars(net).setdefault("_costs", {})
    form = form_of(example)
    if form not in known:
        known[form] = costs(net, example)
    return known[form]


Form = tuple[tuple[str, tuple[int, ...]], ...]
"""Type and shape of each tensor of an input; the first number of a shape is the batch size."""


def form_of(x: Any) -> Form:
    """The form of an input."""
    return tuple([tensor_form(leaf.dtype, leaf.shape) for leaf in tensors_of(x)])


def tensor_form(dtype: torch.dtype, shape: torch.Size) -> tuple[str, tuple[int, ...]]:
    """The form of a tensor."""
    return str(dtype).removeprefix("torch."), tuple(shape)


def counting() -> FlopCounterMode:
    """A context that counts the operations of this thread, attention on CPUs included."""
    counter = FlopCounterMode(display=False, custom_mapping=_ATTENTION)
    # Totals are all that is needed. The tracker of modules would register hooks that run in every thread.
    tracker = SimpleNamespace(parents={"Global"}, __enter__=lambda: None, __exit__=lambda: None)
    counter.mod_tracker = tracker  # type: ignore[assignment]
    return counter


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_attention_math_for_mps: _attention,
}
"""The kernels of attention that torch does not count by itself."""


def _real(leaf: Any, net: Network) -> Any:
    if not isinstance(leaf, Tensor) or leaf.device.type != "meta":
        return leaf
    return torch.zeros(leaf.shape, dtype=leaf.dtype, device=weights_device(net))


def _counted(net: Network, example: Any, params: list[int] | None = None) -> Costs:
    macs, heads = [], []
    with eval_mode(net), torch.no_grad(), counting() as counter:
        for head in net.walk(example):
            if head is None:
                continue
            before = counter.get_total_flops()
            head()
            macs.append(counter.get_total_flops() // 2)
            heads.append(macs[-1] - before // 2)
    return Costs(macs, params or count_params(net.units), heads)


def count_params(units: Sequence[tuple[nn.Module, nn.Module | None]]) -> list[int]:
    """Parameters up to each exit; ``units`` are stages in the order in which they run, each with its head or None."""
    seen: dict[int, int] = {}
    totals = []
    for stage, head in units:
        for module in (stage, head) if head else (stage,):
            seen |= {id(parameter): parameter.numel() for parameter in module.parameters()}
        if head:
            totals.append(sum(seen.values()))
    return totals
