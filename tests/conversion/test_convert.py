"""Any model becomes an anytime network: the same numbers, the same parameters, real stages."""

import copy

import laws
import pytest
import torch
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
