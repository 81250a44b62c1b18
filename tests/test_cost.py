import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import anytime
from anytime.cost import Costs, counting


def test_counting_changes_nothing_and_needs_no_memory():
    net = anytime.create_model("resann-1-8").train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    on_meta = anytime.costs(net, torch.empty(1, 3, 32, 32, device="meta"))
    assert net.training
    assert all(torch.equal(tensor, net.state_dict()[name]) for name, tensor in before.items())
    with torch.device("meta"):
        huge = anytime.create_model("resann-1-8")
    assert anytime.costs(huge, torch.empty(1, 3, 32, 32)) == on_meta


def test_latency_is_cumulative_and_leaves_the_mode():
    net = anytime.create_model("resann-1-8").train()
    seconds = anytime.profile(net, torch.randn(1, 3, 32, 32), repeats=5).through
    assert net.training
    assert len(seconds) == 3
    assert seconds == sorted(seconds)
    assert seconds[0] > 0


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20, unique=True), st.floats(0, 1, exclude_min=True))
def test_the_exit_at_a_fraction(macs, fraction):
    cost = Costs(sorted(macs), sorted(macs))
    exit = cost.exit_at(fraction)
    if cost.macs[exit] > fraction * cost.macs[-1]:
        assert exit == 0, "only the first may cost more, where none is within"
    elif exit + 1 < len(macs):
        assert cost.macs[exit + 1] > fraction * cost.macs[-1]
    assert cost.exit_at(1.0) == len(macs) - 1


def test_densenets_first_exit_is_past_a_quarter():
    assert Costs([46, 100], [1, 2]).exit_at(0.25) == 0
    assert Costs([46, 100], [1, 2]).fractions[0] == pytest.approx(0.46)


class Attention(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


def test_attention_is_counted_as_its_products_of_matrices():
    net = anytime.AnytimeNetwork([Attention()], [torch.nn.Flatten()])
    x = torch.zeros(2, 4, 5, 8)
    assert anytime.costs(net, x).macs == [2 * (2 * 4 * 5 * 5 * 8)]
    with counting() as counter:
        net(x)
    assert counter.get_total_flops() == 4 * (2 * 4 * 5 * 5 * 8)


def test_counting_concerns_no_other_thread():
    """Neither by hooks nor by the choice of attention kernels, which hold for all threads."""
    counted, seen = torch.nn.Linear(2, 2), []

    def look():
        flash = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()
        seen.append((flash, len(torch.nn.modules.module._global_forward_hooks)))

    look()
    with counting() as counter:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        counted(torch.zeros(1, 2))
    assert seen[0] == seen[1]
    assert counter.get_total_flops() == 8


def test_a_model_without_exits_is_refused():
    with pytest.raises(anytime.AnytimeError, match="convert"):
        anytime.costs(torch.nn.Linear(3, 3), torch.zeros(1, 3))


class Masked(torch.nn.Module):
    """A stage with a tensor that is no buffer."""

    def __init__(self):
        super().__init__()
        self.layer, self.mask = torch.nn.Linear(8, 8), torch.linspace(0, 1, 8)

    def forward(self, x):
        return self.layer(x) * self.mask


def test_what_cannot_run_on_the_meta_device_is_counted_as_it_runs():
    net = anytime.AnytimeNetwork([Masked(), Masked()], [torch.nn.Linear(8, 3), torch.nn.Linear(8, 3)])
    assert anytime.costs(net, torch.empty(2, 8, device="meta")).macs == [2 * (64 + 24), 4 * (64 + 24)]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        anytime.costs(net, torch.zeros(2, 7))


def test_an_example_is_an_input_not_a_shape():
    net = anytime.create_model("resann-1-8")
    assert anytime.costs(net, np.zeros((1, 3, 32, 32))) == anytime.costs(net, torch.zeros(1, 3, 32, 32))
    with pytest.raises(anytime.AnytimeError, match="the input is a tuple; expected a tensor"):
        anytime.costs(net, (1, 3, 32, 32))


def test_costs_without_heads_are_those_of_each_exit_alone():
    assert Costs([46, 80, 100], [1, 2, 3]).alone == [46, 80, 100]
    assert Costs([46], [1], [2]).alone == [46]
