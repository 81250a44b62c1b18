import laws
import pytest
import torch
from torch import nn

import anytime
from anytime.inference.policy import Policy
from anytime.network import ReachedExit, tensors_of
from anytime.rows import select_rows


class Pair(nn.Module):
    """A stage whose state is a pair of tensors, as in multi-scale networks."""

    def __init__(self, first):
        super().__init__()
        self.first = first
        self.fine, self.coarse = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, state):
        fine, coarse = (state, state) if self.first else state
        return self.fine(fine), self.coarse(coarse + fine)


class PairHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, state):
        return self.fc(state[1])


@pytest.fixture
def net():
    return anytime.AnytimeNetwork([Pair(i == 0) for i in range(4)], [PairHead() for _ in range(4)])


def test_laws_with_a_state_of_many_tensors(net):
    x = torch.randn(5, 6)
    laws.prefix_law(net, x)
    laws.skipping_law(net, x, [1, -2])
    laws.joining_law(net, x)
    assert anytime.costs(net, x).macs == [5 * (72 * i + 18 * i) for i in range(1, 5)]


class Loop(anytime.Network):
    """A kind of its own: one module that runs again and again, with an exit after every second time."""

    def __init__(self, times):
        super().__init__()
        self.times, self.again, self.head = times, nn.Linear(6, 6), nn.Linear(6, 3)

    @property
    def stage_exits(self):
        return [stage // 2 if stage % 2 else None for stage in range(self.times)]

    @property
    def units(self):
        return [(self.again, self.head if stage % 2 else None) for stage in range(self.times)]

    def run_stage(self, stage, state):  # noqa: ARG002
        return self.again(state).relu_()

    def exit_after(self, stage, state):
        return ReachedExit(self.head, state, stage // 2) if stage % 2 else None


def test_a_kind_of_network_needs_four_members_and_has_all_the_rest():
    net, x = Loop(6).eval(), torch.randn(5, 6)
    laws.narrowing_law(net, x)
    laws.joining_law(net, x)
    with torch.no_grad():
        whole = net(x)
        assert len(whole) == net.exits == 3
        assert all(torch.equal(step.logits, whole[step.exit]) for step in net.steps(x, [0, 2]))
        assert torch.equal(anytime.predict(net, x, exits=2).logits, whole[1])
        sure = Policy("confidence", [0.0, 0.0], [1.0] * 3, [1.0] * 3, [1.0] * 3, 1.0).predict(net, x)
        assert torch.equal(sure.logits, whole[0])
    assert anytime.costs(net, x[:1]).macs == [90, 90 + 90, 90 + 180]
    with anytime.Engine(net, example=x[:1], processes=0) as engine:
        torch.testing.assert_close(engine.submit(x[:1]).result().logits, whole[2][:1])
    with pytest.raises(TypeError, match="abstract"):
        anytime.Network()


def test_what_a_network_takes_is_what_it_was_built_for():
    """Not what its first convolution takes, which may see patches."""
    for name in ("resann-1-8-patch2", "denseann-40-4", "msdnet-cifar"):
        net = anytime.create_model(name, in_channels=1).eval()
        assert net.input_shape() == (1, 32, 32)
        assert anytime.EANN([net]).input_shape() == anytime.combine(net).input_shape() == (1, 32, 32)
        with torch.no_grad():
            net(torch.zeros(2, *net.input_shape()))
    larger, smaller = (anytime.create_model(f"resann-{n}-8-patch2", in_channels=1) for n in (2, 1))
    assert anytime.EANN([larger, smaller]).order == [1, 0]
    with pytest.raises(anytime.AnytimeError, match="does not say which images it takes"):
        Loop(2).input_shape()


def test_nothing_runs_before_the_first_prediction_is_asked_for(net):
    ran = []
    net.stages[0].register_forward_hook(lambda *_: ran.append(0))
    steps = net.steps(torch.randn(1, 6))
    assert not ran
    next(steps)
    assert ran


def test_no_exit_wanted_costs_nothing(net):
    assert net(torch.randn(1, 6), only=[]) == []


def test_an_exit_that_is_not_there(net):
    with pytest.raises(IndexError, match="numbered 0 to 3"):
        net.steps(torch.randn(1, 6), only=[4])


def test_stages_without_heads():
    with pytest.raises(ValueError, match="2 stages and 1 heads"):
        anytime.AnytimeNetwork([nn.Identity(), nn.Identity()], [nn.Identity()])


def test_compiled_whole(net):
    x = torch.randn(5, 6)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    assert all(torch.equal(a, b) for a, b in zip(net(x), compiled(x), strict=True))


def test_vmap_goes_through(net):
    x = torch.randn(3, 5, 6)
    with torch.no_grad():
        together = torch.func.vmap(lambda one: net(one)[-1])(x)
        torch.testing.assert_close(together, torch.stack([net(one)[-1] for one in x]))


def test_chosen_rows_keep_their_layout():
    x = torch.randn(6, 4, 5, 7)
    rows = torch.tensor([4, 0, 3])
    for layout in (torch.contiguous_format, torch.channels_last):
        chosen = select_rows(x.contiguous(memory_format=layout), rows)
        assert torch.equal(chosen, x[rows])
        assert chosen.is_contiguous(memory_format=layout)
    assert torch.equal(select_rows(x.transpose(0, 1), rows, dim=1), x[rows].transpose(0, 1))
    assert torch.equal(select_rows(x[:, :1].expand(6, 4, 5, 7), rows), x[rows, :1].expand(3, 4, 5, 7))


@pytest.mark.parametrize("name", ["resann-1-8", "msdnet-cifar-2-1-1", "resann-1-8-patch2", "resann-1-8-mlpheads"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_joined_batches_keep_channels_last(name, layout):
    net = anytime.create_model(name).eval()
    x = torch.randn(4, 3, 32, 32).contiguous(memory_format=layout)
    laws.joining_law(net, x)
    with torch.no_grad():
        states = [net.run_stage(0, net.take(x, torch.tensor([i]))) for i in range(4)]
    joined = tensors_of(net.join(states))
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in joined)


def test_what_cannot_be_joined(net):
    with pytest.raises(anytime.AnytimeError, match="same stage, and of samples of the same shape"):
        net.join([torch.zeros(1, 6), torch.zeros(1, 7)])
    with pytest.raises(anytime.AnytimeError, match="'a' and 'b'"):
        net.join([{"x": torch.zeros(1, 6), "kind": kind} for kind in "ab"])


def test_heads_may_return_several_tensors():
    class Box(nn.Module):
        """The state itself, and the place of a box."""

        def __init__(self):
            super().__init__()
            self.place = nn.Linear(4, 2)

        def forward(self, state):
            return {"state": state, "place": self.place(state)}

    net = anytime.AnytimeNetwork([nn.Linear(4, 4), nn.ReLU(inplace=True)], [Box(), Box()])
    x, y = torch.randn(5, 4), torch.zeros(5, 2)
    assert torch.equal(net(x)[0]["state"], net.stages[0](x)), "the next stage has changed it"

    net.stages[1] = nn.ReLU()

    def loss(outputs, targets):
        return (outputs["place"] - targets).square().mean(1)

    anytime.fit(net, [(x, y)], "const", loss=loss, epochs=1, show=False)
    own = [loss(outputs, y).mean().item() for outputs in net(x)]
    assert anytime.evaluate(net, [(x, y)], metric=loss).errors == pytest.approx(own)
