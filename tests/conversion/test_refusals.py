"""What cannot be converted is refused with a message that helps, and nothing else is printed."""

import numpy as np
import processes
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import anytime


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.fc = nn.ModuleList(nn.Linear(8, 8) for _ in range(4)), nn.Linear(8, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.fc(x)


class Recurrent(nn.Module):
    """Three layers of an LSTM in one module."""

    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(8, 8, num_layers=3, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.lstm(x)[0][:, -1])


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.fc = nn.Linear(8, 8), nn.Linear(8, 3)
        self.layers = nn.ModuleList(nn.LSTM(8, 8, batch_first=True) for _ in range(3))

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.inside(x), lengths, batch_first=True, enforce_sorted=False)
        for layer in self.layers:
            packed, (h, _) = layer(packed)
        return self.fc(h[-1])


class Free(nn.Module):
    """Nothing in it is counted as a multiply-accumulate."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.ReLU(), nn.BatchNorm1d(8)

    def forward(self, x):
        return self.b(self.a(x))


V, SEQUENCE, LENGTHS = torch.randn(2, 8), torch.randn(2, 6, 8), torch.tensor([6, 4])
PACKED = pack_padded_sequence(SEQUENCE, LENGTHS, batch_first=True)


@pytest.mark.parametrize(
    ("model", "example", "options", "message"),
    [
        ("resnet18", V, {}, r"expected an nn.Module: build it first, e.g. convert\(timm.create_model\('resnet18'"),
        (Plain, V, {}, r"this is a class; build the model first: convert\(Plain\(…\), example\)"),
        (None, V, {}, r"expected an nn.Module: convert\(model, example\)"),
        (anytime.create_model("resann-1-4"), torch.zeros(1, 3, 32, 32), {}, "is an anytime network already"),
        (Plain(), np.zeros((1, 8), np.float32), {}, r"a NumPy array; expected tensors: torch.from_numpy\(array\)"),
        (Plain(), {"x": np.zeros((1, 8), np.float32)}, {}, "torch.from_numpy"),
        (Plain(), None, {}, "the example is NoneType; expected an input of the model"),
        (Plain(), torch.zeros(2, 5), {}, r"model\(example\) fails for this Plain: RuntimeError: mat1 and mat2"),
        (Plain(), {"y": V}, {}, r"model\(\*\*example\) fails for this Plain: TypeError: .*'y'"),
        (Plain(), V, {"logits": lambda output: output["y"]}, r"logits\(model\(example\)\) fails"),
        (Plain(), V, {"logits": lambda _: None}, "the logits are None"),
        (Recurrent(), SEQUENCE, {}, "lstm computes its 3 layers in one operation; .* use 3 nn.LSTM modules"),
        (nn.LSTM(8, 8, 3), SEQUENCE, {}, r"returns a tuple \(a tensor of shape \(2, 6, 8\), a tuple \(.*logits=lambda"),
        (nn.LSTM(8, 8), PACKED, {}, r"contains a packed sequence, .*convert\(model, \(padded, lengths\)\)"),
        (Packed(), (SEQUENCE, LENGTHS), {"exits": 3}, "layers.0 returns a packed sequence, after which"),
        (Packed(), (SEQUENCE, LENGTHS), {"exits": ["layers.1"]}, "layers.1 returns a packed sequence, which"),
        (Free(), V, {}, r"no multiply-accumulates are counted in Free, .* name modules instead, e.g. exits=\['a'\]"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_refused_in_one_clear_message(model, example, options, message):
    with pytest.raises(anytime.AnytimeError, match=message) as refused:
        anytime.convert(model, example, **options)
    assert "\n" not in str(refused.value)


def test_a_model_without_counted_costs_works_with_named_exits():
    net = anytime.convert(Free().train(), V, exits=["a"])
    sum(output.sum() for output in net(V)).backward()  # no parameters come before the first exit
    assert anytime.costs(net.eval(), V).macs[-1] > 0, "the head's"
    alone = anytime.convert(Free().eval(), V, exits=1)
    assert anytime.costs(alone, V).fractions == [0]
    assert anytime.predict(alone, V, deadline=60).exit == 0


@pytest.mark.filterwarnings("ignore:.*is paused inside")
def test_packed_sequences_before_and_after_the_exits():
    model = Packed().eval()
    net = anytime.convert(model, (SEQUENCE, LENGTHS), exits=["inside"])
    assert torch.equal(net((SEQUENCE, LENGTHS))[-1], model(SEQUENCE, LENGTHS))


class States(nn.Module):
    """Layers of which each starts with the state that the one before ended with."""

    def __init__(self, kind):
        super().__init__()
        self.layers, self.fc = nn.ModuleList(kind(8, 8) for _ in range(3)), nn.Linear(8, 3)

    def forward(self, x):
        x, state = x.transpose(0, 1), None  # time first
        for layer in self.layers:
            x, state = layer(x, state)
        return self.fc(x[-1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_cut_with_their_states(kind):
    model = States(kind).eval()
    net = anytime.convert(model, SEQUENCE, exits=3)
    assert net.paused_because is None
    assert net.places == ["layers.0", "layers.1", "the model's own"]
    more = torch.cat([SEQUENCE, SEQUENCE])
    torch.testing.assert_close(net(more)[-1], model(more))


def test_none_and_tuples_in_outputs():
    class Block(nn.Linear):
        def forward(self, input):
            return None, (super().forward(input), input)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.fc = nn.ModuleList(Block(8, 8) for _ in range(4)), nn.Linear(8, 3)

        def forward(self, x):
            for block in self.blocks:
                _, (x, _) = block(x)
            return None, self.fc(x), (x, None)  # as with no loss

    model = Model().eval()
    net = anytime.convert(model, V, exits=2)
    assert net.places == ["blocks.1", "the model's own"]
    assert torch.equal(net(V)[-1], model(V)[1])


def test_gradients_are_missed_only_where_there_should_be_some():
    model = Plain()
    model.layers[0].requires_grad_(False)  # the user's own freezing
    net = anytime.convert(model, V, exits=["layers.0", "layers.2"]).train()
    sum(output.sum() for output in net(V)).backward()
    assert model.layers[0].weight.grad is None
    assert model.layers[1].weight.grad is not None


QUIET = """
import warnings
import torch
from torch import nn
import anytime

class Moody(nn.Sequential):
    def forward(self, x):
        for layer in self:
            x = layer(x)
            if x.abs().max() > 1:  # torch.export cannot follow this
                x = x / 2
        return x

class Recurrent(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0][:, -1]

layers = [nn.Linear(8, 8) for _ in range(4)]
anytime.convert(nn.Sequential(*layers), torch.zeros(1, 8))
anytime.convert(Recurrent(8, 8, batch_first=True), torch.zeros(1, 5, 8), exits=1)
warnings.simplefilter("ignore", UserWarning)
anytime.convert(Moody(*layers), torch.ones(1, 8))
"""


def test_converting_prints_nothing():
    done = processes.run(["-c", QUIET])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
