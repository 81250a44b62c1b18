"""Stages that work in place change no answer: every way to ask an exit gives what it gives alone."""

import asyncio
import copy

import laws
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import anytime
from anytime.inference.policy import Policy

WIDTH = 4


class Scale(nn.Module):
    """A stage or a head that returns a new tensor."""

    def __init__(self, factor):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(factor))

    def forward(self, x):
        return x * self.weight


class Add(Scale):
    """A stage that changes its input."""

    def forward(self, x):
        return x.add_(self.weight)


class View(nn.Module):
    """A stage that changes a view of its input."""

    def forward(self, x):
        return x.view(-1, WIDTH).mul_(-1.5)


STAGES = [lambda: Scale(1.25), lambda: Add(0.5), lambda: nn.ReLU(inplace=True), View, nn.Identity]
HEADS = [
    lambda: Scale(2.0),
    nn.Identity,
    nn.Flatten,
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH)),
    lambda: Add(0.25),
    View,
]


@st.composite
def networks(draw):
    size = draw(st.integers(1, 6))
    stages = [draw(st.sampled_from(STAGES))() for _ in range(size)]
    return anytime.AnytimeNetwork(stages, [draw(st.sampled_from(HEADS))() for _ in range(size)]).eval()


@st.composite
def ensembles(draw):
    eann = anytime.EANN([draw(networks()) for _ in range(draw(st.integers(1, 3)))]).eval()
    everything = eann.offered
    chosen = draw(st.sets(st.sampled_from(everything), min_size=1))
    eann.offered = [exit for exit in everything if exit in chosen]
    return eann


class StopAfter:
    """An event that is set once it was asked so many times."""

    def __init__(self, times):
        self.times = times

    def is_set(self):
        self.times -= 1
        return self.times < 0


def alone(net, x):
    """What each exit gives when nothing else runs."""
    if not isinstance(net, anytime.EANN):
        return [head(nn.Sequential(*net.stages[: i + 1])(x.clone())).clone() for i, head in enumerate(net.heads)]
    every = [alone(member, x) for member in net.members]
    return [every[member][exit] for member, exit in net.offered]


def every_way(net, x, expected):
    def check(exit, logits):
        torch.testing.assert_close(logits, expected[exit], rtol=0, atol=0)

    for exit, logits in enumerate(net(x.clone())):
        check(exit, logits)
    for step in list(net.steps(x.clone())):
        check(*step)
    for exit in range(net.exits):
        check(exit, net(x.clone(), [exit])[0])
        check(exit, anytime.predict(net, x.clone(), exits=exit + 1).logits)
    for times in range(1, len(net.stages) + 2):
        try:
            prediction = anytime.predict(net, x.clone(), stop=StopAfter(times))
        except anytime.UnfinishedError:
            continue
        check(prediction.exit, prediction.logits)
    with anytime.start(net, x.clone()) as background:
        background.result()
    check(net.exits - 1, background.latest().logits)

    async def predictions():
        return [prediction async for prediction in anytime.astart(net, x.clone())]

    shown = asyncio.run(predictions())
    assert [prediction.exit for prediction in shown] == list(range(net.exits))
    for prediction in shown:
        check(prediction.exit, prediction.logits)


def policy_for(net, threshold):
    exits = net.exits
    return Policy("confidence", [threshold] * (exits - 1), [1.0] * exits, [1.0] * exits, [1.0] * exits, 1.0)


@settings(max_examples=40)
@given(st.one_of(networks(), ensembles()), st.integers(0, 100))
def test_every_way_to_ask_gives_what_the_exit_gives_alone(net, seed):
    x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        expected = alone(net, x)
        every_way(net, x, expected)
        answers = policy_for(net, 0.4).predict(net, x.clone())
        laws.joining_law(net, x.clone(), sizes=(2, 1))
    for sample, exit in enumerate(answers.exits.tolist()):
        torch.testing.assert_close(answers.logits[sample], expected[exit][sample])


class Block(nn.Module):
    """A residual block as public libraries write it: two operations in place."""

    def __init__(self):
        super().__init__()
        self.fc, self.relu = nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.fc(x))
        y += x
        return self.relu(y)


class Untraceable(Block):
    """Nothing that a graph can be captured of."""

    def forward(self, x):
        return super().forward(x) if x.detach().sum().item() < 1e9 else x


@pytest.mark.filterwarnings("ignore:.*is paused inside its own code")
@pytest.mark.parametrize("block", [Block, Untraceable])
@pytest.mark.parametrize("ensemble", [False, True])
def test_a_converted_model_with_operations_in_place(block, ensemble):
    blocks = [layer for _ in range(3) for layer in (block(), nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True))]
    model, x = nn.Sequential(*blocks, nn.Linear(WIDTH, WIDTH)).eval(), torch.randn(3, WIDTH)
    places = ["0", "1", "3", "4", "6"]
    net = anytime.convert(model, x, exits=places, head=lambda *_: nn.Identity()).eval()
    assert (net.paused_because is not None) == (block is Untraceable)
    with torch.no_grad():
        outputs, state = [], x
        for layer in copy.deepcopy(model):
            state = layer(state.clone())
            outputs.append(state)
        expected = [outputs[int(place)] for place in places] + [outputs[-1]]
        if ensemble:
            eann = anytime.EANN([net], x).eval()
            eann.offered = [(0, 0), (0, 3), (0, 5)]
            net, expected = eann, [expected[0], expected[3], expected[5]]
        every_way(net, x, expected)


@pytest.mark.filterwarnings("ignore:.*is paused inside its own code")
@pytest.mark.parametrize("block", [Block, Untraceable])
def test_heads_of_a_converted_model_that_work_in_place(block):
    model, x = nn.Sequential(block(), nn.Linear(WIDTH, WIDTH), block()), torch.randn(3, WIDTH)
    net = anytime.convert(model, x, exits=["0", "1"], head=lambda *_: nn.Sequential(Add(0.5), Scale(2.0)))
    assert (net.paused_because is not None) == (block is Untraceable)
    with torch.no_grad():
        expected = [2 * (model[: i + 1](x) + 0.5) for i in range(2)] + [model(x)]
        every_way(net.eval(), x, expected)
        for logits, wanted in zip(net.train()(x), expected, strict=True):
            torch.testing.assert_close(logits, wanted)


def test_an_exit_that_the_walk_has_passed_is_refused():
    walk = anytime.AnytimeNetwork([Add(1.0), Add(1.0)], [nn.Identity(), nn.Identity()]).walk(torch.zeros(1))
    first = next(walk)
    assert first().item() == 1
    second = next(walk)
    with pytest.raises(anytime.AnytimeError, match="gone past this exit"):
        first()
    assert second().item() == 2


def test_a_head_that_works_in_place_in_training_alone():
    """Whichever mode it was first seen in."""
    head = nn.Sequential(nn.Dropout(0.5, inplace=True), nn.Linear(WIDTH, WIDTH))
    net = anytime.AnytimeNetwork([Scale(1.0), Scale(1.0)], [head, nn.Identity()])
    x = torch.randn(3, WIDTH)
    for mode in (False, True, False):
        state = torch.get_rng_state()
        assert torch.equal(net.train(mode)(x)[-1], x)
        assert mode or torch.equal(torch.get_rng_state(), state)
