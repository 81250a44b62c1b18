"""Models whose code is out of the ordinary: branches, views, in-place changes, tied weights, other types of numbers."""

import laws
import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import anytime


def agrees(model, x, exits=3):
    """Converted, trained a step and saved: what must work for any model."""
    net = anytime.convert(model.eval(), x, exits=exits)
    with torch.no_grad():
        assert torch.equal(net(x)[-1], laws.own_logits(model, x))
    assert anytime.costs(net, x).macs[-1] > 0
    net.train()
    net(x)[0].float().square().sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    return net.eval()


class Many(nn.Module):
    def __init__(self, width=16, classes=5):
        super().__init__()
        self.l = nn.ModuleList(nn.Linear(width, width) for _ in range(8))
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        for layer in self.l:
            x = x + torch.relu(layer(x))
        return self.fc(x)


V = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))


def test_other_types_of_numbers():
    agrees(Many().double(), V.double())
    agrees(Many().bfloat16(), V.bfloat16())


@pytest.mark.filterwarnings("ignore:.*is paused inside")
def test_values_that_mix_samples_are_not_taken_apart():
    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.top, self.fc = nn.Linear(16, 16), Many(), nn.Linear(16, 5)

        def forward(self, a, b):
            z, y = self.body(torch.cat([a, b])), a
            for layer in self.top.l:
                y = torch.relu(layer(y))
            first, second = z.chunk(2)
            return self.fc(first * second + y)

    net = anytime.convert(Siamese().eval(), (V, V.flip(0)), exits=4)
    assert "mixes the samples" in net.paused_because


@pytest.mark.filterwarnings("ignore:.*is paused inside")
def test_a_branch_on_the_number_of_samples_is_not_forgotten():
    class Branch(Many):
        def forward(self, x):
            return super().forward(x * 2 if len(x) > 4 else x)

    model = Branch().eval()
    net = anytime.convert(model, V[:2], exits=3)
    with torch.no_grad():
        assert torch.equal(net(V)[-1], model(V))


def test_a_branch_on_the_length_is_not_forgotten():
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.rest = nn.Embedding(50, 16), Many()

        def forward(self, ids):
            h = self.embed(ids)
            return self.rest((h[:, :32] if ids.shape[1] > 32 else h).mean(1))

    model = Cut().eval()
    net = anytime.convert(model, torch.ones(2, 12, dtype=torch.long), exits=3)
    for length in (20, 40, 32, 33):
        ids = torch.arange(3 * length).view(3, length) % 50
        assert torch.equal(net(ids)[-1], model(ids))


def test_gradient_checkpointing_stays():
    class Checkpointed(Many):
        reentrant = False

        def forward(self, x):
            for layer in self.l:
                x = x + torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=self.reentrant)
            return self.fc(x)

    torch.manual_seed(3)
    plain, model = Many(), Checkpointed()
    model.load_state_dict(plain.state_dict())
    agrees(model, V)
    model.reentrant = True
    net = anytime.convert(model, V, exits=["l.2", "l.5"]).train()
    with pytest.raises(anytime.AnytimeError, match="use_reentrant=False"):
        net(V.requires_grad_())
    V.requires_grad_(False)


def test_features_that_are_changed_in_place_later():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.ModuleList(nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1) for i in range(6))
            self.fc = nn.Linear(8, 5)

        def forward(self, x):
            for layer in self.l:
                x = layer(x)
                x += 1
                x.relu_()
            return self.fc(x.mean((2, 3)))

    agrees(InPlace(), torch.randn(2, 3, 12, 12))


def test_features_that_dropout_changes_in_place():
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(4)]
    model = nn.Sequential(*(m for block in blocks for m in (block, nn.Dropout(0.9, inplace=True))), nn.Linear(16, 5))
    net = anytime.convert(model, V, exits=["0", "2", "4"]).train()
    with torch.no_grad():
        first = net.heads[0].head(blocks[0](V))  # the first dropout comes after it
        assert torch.equal(net(V)[0], first)


def test_tied_weights_are_saved_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.rest = nn.Embedding(20, 16), Many()
            self.out = nn.Linear(16, 20, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, ids):
            x = self.embed(ids)
            for layer in self.rest.l:
                x = torch.relu(layer(x))
            return self.out(x)

    ids = torch.randint(20, (2, 7))
    net = agrees(Tied(), ids)
    assert net(ids)[0].shape == (2, 7, 20), "an answer for each token, as the model's own"
    anytime.save(net, tmp_path)
    again = anytime.load(tmp_path, net=anytime.convert(Tied(), ids, exits=3))
    assert torch.equal(again(ids)[-1], net(ids)[-1])


def test_boolean_indexing_views_of_parameters_and_lstms():
    class Picks(Many):
        def forward(self, x):
            return super().forward(x)[x.sum(1) > -1e9]

    agrees(Picks(), V)

    class Views(Many):
        def __init__(self):
            super().__init__()
            self.query, self.key = nn.Parameter(torch.randn(4, 16)), nn.Linear(16, 16)

        def forward(self, x):
            return super().forward(x + self.key(self.query[:2]).sum(0))

    agrees(Views(), V)

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.r = nn.ModuleList(nn.LSTM(16, 16, batch_first=True) for _ in range(4))
            self.fc = nn.Linear(16, 5)

        def forward(self, x):
            for r in self.r:
                x, _ = r(x)
            return self.fc(x[:, -1])

    assert agrees(Recurrent(), torch.randn(2, 5, 16), exits=4).places == ["r.0", "r.1", "r.2", "the model's own"]


def test_heads_read_the_channels():
    conv = nn.Sequential(
        *(nn.Sequential(nn.Conv1d(1 if i == 0 else 8, 8, 5, padding=2), nn.ReLU()) for i in range(4)),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    net = agrees(conv, torch.randn(2, 1, 40), exits=2)
    assert net.heads[0].head.classify[0].num_features == 2 * 8
    wide = nn.Sequential(
        *(nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1) for i in range(4)), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 5),
    )  # fmt: skip
    assert agrees(wide, torch.randn(2, 3, 16, 24), exits=2).heads[0].head.classify[0].num_features == 2 * 16


def test_examples_and_exits_of_other_kinds():
    with pytest.raises(anytime.AnytimeError, match="exits=None"):
        anytime.convert(Many(), V, exits=None)
    with pytest.raises(anytime.AnytimeError, match="expected an input of the model"):
        anytime.convert(Many(), {"x": 3})
    assert anytime.convert(Many(), V, exits=["l.1", "fc"]).places == ["l.1", "the model's own"]
    from collections import UserDict

    net = anytime.convert(Many().eval(), UserDict(x=V), exits=2)
    assert torch.equal(net(UserDict(x=V))[-1], net({"x": V})[-1])


@pytest.mark.parametrize("training", [False, True])
def test_no_exit_wanted_is_no_answer(training):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    net = anytime.convert(model, torch.zeros(1, 4), exits=["1"]).train(training)
    assert net(torch.zeros(3, 4), only=[]) == []
