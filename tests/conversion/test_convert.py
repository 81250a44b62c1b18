"""Any model becomes an anytime network: the same numbers, the same parameters, real stages."""

import copy

import laws
import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import anytime


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return x + self.drop(torch.relu(self.bn(self.conv(x))))


class Small(nn.Module):
    """A residual network as users write them."""

    def __init__(self, width=8, blocks=6):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.fc = nn.Linear(width, 5)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.fc(x.mean((2, 3)))


X = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def test_where_exits_go():
    model = Small()
    assert anytime.convert(model, X[:1], exits=3).places == ["blocks.1", "blocks.3", "the model's own"]
    assert anytime.convert(model, X, exits=0.5).places == ["blocks.2", "the model's own"]
    assert anytime.convert(model, X, exits=1).exits == 1
    assert anytime.convert(model, X, exits=["blocks.0", "blocks.4"]).places == [
        "blocks.0",
        "blocks.4",
        "the model's own",
    ]
    # After the last block nothing is left but the classifier: that exit is the model's own.
    assert anytime.convert(model, X, exits=["blocks.0", "blocks.5"]).places == ["blocks.0", "the model's own"]


def test_frozen_modules_of_the_model_stay_frozen():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 3)).train()
    model[1].eval()
    net = anytime.convert(model, torch.zeros(2, 8), exits=2)
    assert [module.training for module in model] == [True, False, True, True, True]
    assert net.training
    assert all(module.training for module in net.heads.modules())


def test_training_runs_the_models_own_code():
    model = Small().train()
    net = anytime.convert(model, X, exits=3)
    assert net.training
    assert model.training
    twin = copy.deepcopy(model)
    torch.manual_seed(1)
    logits = net(X)
    torch.manual_seed(1)
    assert torch.equal(logits[-1], twin(X)), "the same drop-out and batch statistics"
    assert torch.equal(model.blocks[0].bn.running_mean, twin.blocks[0].bn.running_mean)
    before = {name: p.clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = torch.stack([nn.functional.cross_entropy(z, torch.arange(4)) for z in logits])
    anytime.AdaLoss(net.exits)(losses).backward()
    optimizer.step()
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())
    with torch.no_grad():
        net.eval()
        assert torch.equal(net(X)[-1], model(X)), "trained as one"


def test_an_early_exit_alone_leaves_the_rest_untouched():
    model = Small()
    net = anytime.convert(model, X, exits=3).train()
    net(X, [0])[0].sum().backward()
    for i, block in enumerate(model.blocks):
        assert all((p.grad is not None) == (i < 2) for p in block.parameters())
    assert model.blocks[5].bn.num_batches_tracked == 0
    assert model.blocks[0].bn.num_batches_tracked > 0


def test_frozen_the_heads_alone_learn():
    model = Small()
    net = anytime.convert(model, X, exits=3).freeze().train()
    assert not model.training
    before = copy.deepcopy(model.state_dict())
    sum(z.square().sum() for z in net(X)).backward()
    assert all(p.grad is None for p in model.parameters())
    assert all(p.grad is not None for head in net.heads[:-1] for p in head.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_save_and_load_with_the_same_constructor(tmp_path):
    net = anytime.convert(Small(), X, exits=3).eval()
    anytime.save(net, tmp_path)
    torch.manual_seed(5)
    again = anytime.load(tmp_path, net=anytime.convert(Small(), X, exits=3))
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(net(X), again(X), strict=True))


def test_it_is_an_ordinary_network():
    net = anytime.convert(Small(), X, exits=3).eval()
    assert anytime.predict(net, X, exits=2).exit == 1
    policy = anytime.calibrate(net, [(X, torch.arange(4))], budget=0.8, unit="fraction")
    assert policy.predict(net, X).logits.shape == (4, 5)
    twin = copy.deepcopy(net).double()
    with torch.no_grad():
        assert torch.allclose(twin(X.double())[-1], net(X)[-1].double(), atol=1e-5)
        nn.init.zeros_(net.model.fc.weight)
        assert not torch.allclose(twin(X.double())[-1], net(X)[-1].double(), atol=1e-5), "a copy is a copy"


class Moody(nn.Module):
    """What it does depends on the data."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            if x.abs().max() > 1:
                x = x / 2
        return self.fc(x)


def test_data_dependent_control_flow_is_paused_inside():
    model = Moody().eval()
    x = torch.randn(2, 8)
    with pytest.warns(UserWarning, match="samples cannot leave a batch one by one"):
        net = anytime.convert(model, x, exits=3).eval()
    assert "torch.export cannot follow it" in net.paused_because
    laws.conversion_law(model, x, net)
    runs = [anytime.start(net, x) for _ in range(4)]  # each pauses by itself
    assert all(torch.equal(run.result().logits, model(x)) for run in runs)
    policy = anytime.calibrate(net, [(x, torch.tensor([0, 1]))], budget=0.7, unit="fraction")
    with pytest.raises(anytime.AnytimeError, match="cannot be taken out"):
        policy.predict(net, torch.randn(50, 8))
    logits = net.train()(x)
    sum(z.sum() for z in logits).backward()
    assert model.layers[0].weight.grad is not None
    net.eval()
    steps = net.steps(x)
    next(steps)
    del steps  # abandoned in the middle: its thread ends
    model.layers[4] = nn.Linear(5, 8)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        net(x)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.never, self.fc = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.block(torch.relu(self.block(x))))


@pytest.mark.parametrize(
    ("model", "exits", "message"),
    [
        (Small, ["blok.1"], r"no module 'blok.1'; the nearest are: .*blocks.1"),
        (Small, ["blocks.3", "blocks.1"], "not in order: blocks.1 does not end after blocks.3"),
        (Small, 50, "places for at most 1?[0-9]"),
        (Small, 0, "an integer >= 1"),
        (Small, -0.5, "share of the cost"),
        (Small, [], "at least one"),
    ],
)
def test_clear_errors(model, exits, message):
    with pytest.raises(anytime.AnytimeError, match=message):
        anytime.convert(model(), X, exits=exits)


def test_clear_errors_about_calls_and_outputs():
    x = torch.randn(2, 8)
    with pytest.raises(anytime.AnytimeError, match="block is called 2 times"):
        anytime.convert(Twice(), x, exits=["block"])
    with pytest.raises(anytime.AnytimeError, match="never is not called"):
        anytime.convert(Twice(), x, exits=["never"])
    assert anytime.convert(Twice(), x, exits=2).places == ["block, call 1", "the model's own"]

    class NoLogits(Twice):
        def forward(self, x):
            return {"hidden": super().forward(x), "other": x}

    with pytest.raises(anytime.AnytimeError, match=r"dict\(hidden, other\), with no logits"):
        anytime.convert(NoLogits(), x, exits=2)
    net = anytime.convert(NoLogits(), x, exits=2, logits=lambda output: output["hidden"]).eval()
    assert net(x)[-1].shape == (2, 3)
    small = anytime.convert(Small(), X, exits=2).eval()
    with pytest.raises(anytime.AnytimeError, match=r"captured with a tensor of shape \(any, 3, 12, 12\)"):
        small(torch.randn(3, 16, 16))
    with pytest.raises(anytime.AnytimeError, match="of the form"):
        small({"x": X})


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

    agrees(InPlace(), X)


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
    assert net.heads[0].head.bn.num_features == 8
    wide = nn.Sequential(
        *(nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1) for i in range(4)), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 5),
    )  # fmt: skip
    assert agrees(wide, torch.randn(2, 3, 16, 24), exits=2).heads[0].head.bn.num_features == 16


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
