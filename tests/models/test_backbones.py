"""The paper's large networks and the original MSDNet: costs at full size, laws at small."""

import functools
import math
import subprocess
import sys

import laws
import public
import pytest
import torch
from torch import nn

import anytime

MILLION = 1e6
TABLE = {
    "msdnet38": ([840.7, 1588.8, 2345.0, 3042.8, 3346.9], 71.65),
    "denseann169": ([1560.2, 2209.4, 2564.4, 3099.4, 3211.6, 3363.6], 17.9),
    "resann50": ([567.8, 1159.2, 1596.5, 2188.4, 2626.1, 3063.9, 3656.8, 4095.6], 32.0),
    "msdnet-cifar": ([14.97, 25.26, 37.47, 51.67, 61.74, 73.59, 87.21, 99.48, 109.55, 121.09], 4.96),
}


@functools.cache
def on_meta(name, **options):
    with torch.device("meta"):
        net = anytime.create_model(name, **options)
    return net, anytime.costs(net, torch.empty(1, 3, net.image_size, net.image_size, device="meta"))


@pytest.mark.parametrize("name", TABLE)
def test_costs_are_the_published_ones(name):
    options = {"num_classes": 100} if name == "msdnet-cifar" else {}
    _, cost = on_meta(name, **options)
    macs, params = TABLE[name]
    assert [m / MILLION for m in cost.macs] == pytest.approx(macs, rel=1e-3)
    assert cost.params[-1] / MILLION == pytest.approx(params, rel=2.5e-3)


@pytest.mark.parametrize(("name", "last", "params"), [("resann50", 16, 25.55), ("denseann169", 82, 14.15)])
def test_parameters_with_the_last_exit_alone(name, last, params):
    _, cost = on_meta(name, exits=(last,))
    assert cost.params[-1] / MILLION == pytest.approx(params, rel=1e-3)


def test_the_paper_doubles_msdnets_macs():
    """Its 6.6e9 and 4.0e9 FLOPS are twice the multiply-accumulates."""
    assert 2 * on_meta("msdnet38")[1].macs[-1] == pytest.approx(6.6e9, rel=0.02)
    assert 2 * on_meta("msdnet32")[1].macs[-1] == pytest.approx(4.0e9, rel=0.05)


@pytest.mark.parametrize(
    ("name", "exits"),
    [
        ("resann26", [2, 4, 6, 8]),
        ("resann101", [3 * i for i in range(1, 12)]),
        ("denseann169", [12, 26, 40, 54, 68, 82]),
        ("msdnet38", [10, 17, 24, 31, 38]),
        ("msdnet32", [4, 11, 18, 25, 32]),
        ("msdnet-cifar", [4, 6, 8, 10, 12, 14, 16, 18, 20, 22]),
        ("msdnet-cifar-budgeted", [1, 3, 6, 10, 15]),
        ("msdnet-cifar-4-2-1", [2, 3, 4, 5]),
        ("msdnet-imagenet-step4", [4, 8, 12, 16, 20]),
    ],
)
def test_exits_stand_where_the_papers_have_them(name, exits):
    assert on_meta(name)[1] == on_meta(name, exits=tuple(exits))[1]


def original_msdnet_macs(sizes, growth=6, channels=16, classes=100, factors=(1, 2, 4), side=32, reduction=0.5):
    """The original MSDNet for CIFAR, its MACs counted layer by layer with nothing but arithmetic."""
    scales, layers = len(factors), sum(sizes)
    interval = math.ceil(layers / scales)
    pixels = [(side // 2**s) ** 2 for s in range(scales)]
    total = 27 * channels * pixels[0]
    total += sum(9 * channels**2 * factors[s - 1] * factors[s] * pixels[s] for s in range(1, scales))
    result, layer = [], 0
    for size in sizes:
        for _ in range(size):
            layer += 1
            finest_read, finest = max(0, layer - 2) // interval, (layer - 1) // interval
            for s in range(finest, scales):
                half = growth * factors[s] // 2
                edges = [(s, half, s), (s - 1, half, s)] if s > finest_read else [(s, 2 * half, s)]
                if s == 0:
                    edges = [(0, growth, 0)]
                for source, new, target in edges:
                    inputs = channels * factors[source]
                    width = min(inputs, factors[source] * new)
                    total += inputs * width * pixels[source] + 9 * width * new * pixels[target]
            channels += growth
            if finest > finest_read:
                less = math.floor(reduction * channels)
                total += sum(channels * less * factors[s] ** 2 * pixels[s] for s in range(finest, scales))
                channels = less
        inputs = channels * factors[-1]
        total += 9 * 128 * inputs * (side // 8) ** 2 + 9 * 128 * 128 * (side // 16) ** 2 + 128 * classes
        result.append(total)
    return result


@pytest.mark.parametrize(
    "options",
    [
        {"blocks": 10, "base": 4, "step": 2},
        {"blocks": 7, "base": 4, "step": 2},
        {"blocks": 5, "base": 1, "step": 1, "step_mode": "lin_grow"},
        {"blocks": 6, "base": 1, "step": 2, "step_mode": "lin_grow"},
        {"blocks": 3, "base": 2, "step": 1, "growth": 8, "channels": 24},
    ],
)
def test_the_original_msdnet_counted_by_hand(options):
    with torch.device("meta"):
        net = anytime.models.MSDNet(**options, num_classes=100)
    grows = options.get("step_mode") == "lin_grow"
    sizes = [options["base"]]
    sizes += [options["step"] * i + 1 if grows else options["step"] for i in range(1, options["blocks"])]
    more = {key: options[key] for key in ("growth", "channels") if key in options}
    cost = anytime.costs(net, torch.empty(1, 3, 32, 32, device="meta"))
    assert cost.macs == original_msdnet_macs(sizes, **more)


SMALL = {
    "resann26": {},
    "resann50": {"exits": [1, 7, 16]},
    "resann101": {},
    "denseann121": {},
    "denseann169": {},
    "denseann-40-12": {},
    "denseann-22-8": {"dropout": 0.1, "save_memory": True, "period": 1},
    "msdnet38": {},
    "msdnet32": {"period": 5},
    "msdnet-cifar": {},
    "msdnet-cifar-budgeted": {},
    "msdnet-imagenet-step4": {"period": 3},
}


@pytest.mark.parametrize("name", SMALL)
def test_the_laws_hold(name):
    net = anytime.create_model(name, num_classes=7, in_channels=2, **SMALL[name])
    x = torch.randn(2, 2, 40, 33)
    laws.prefix_law(net, x)
    laws.skipping_law(net, x, [0, -1])
    laws.save_law(net, x)
    laws.cost_law(net, x)


@pytest.mark.parametrize("name", ["resann26", "denseann-22-8", "msdnet-cifar-budgeted", "msdnet32"])
def test_every_parameter_gets_a_gradient(name):
    net = anytime.create_model(name, num_classes=7)
    laws.gradient_law(net, anytime.AdaLoss(net.exits), torch.randn(4, 3, 64, 64))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prune": "min"}, None),
        ({"reduction": 0}, None),
        ({"prune": "min", "reduction": 0, "scales": 2, "growth_factors": (1, 2), "bottleneck_factors": (1, 2)}, None),
        ({"scales": 4}, "one factor per scale"),
        ({"prune": "most"}, "'max' or 'min'"),
        ({"step_mode": "odd"}, "'even' or 'lin_grow'"),
        ({"blocks": 0}, "must be an integer >= 1"),
    ],
)
def test_msdnets_other_parameters(options, says):
    if says:
        with pytest.raises(ValueError, match=says):
            anytime.models.MSDNet(**options)
        return
    net = anytime.models.MSDNet(blocks=4, base=2, step=2, **options)
    laws.prefix_law(net, torch.randn(1, 3, 32, 32))
    laws.cost_law(net, torch.randn(1, 3, 32, 32))


def test_saving_memory_changes_no_bit():
    plain, saving = (anytime.create_model("denseann-22-8", save_memory=saves) for saves in (False, True))
    saving.load_state_dict(plain.state_dict())
    x = torch.randn(4, 3, 32, 32)
    for net in (plain, saving):
        sum(logits.square().sum() for logits in net(x)).backward()
    for (name, a), b in zip(plain.named_parameters(), saving.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad), name
    for (name, a), b in zip(plain.state_dict().items(), saving.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_resnext_units():
    net, cost = on_meta("resann50", groups=32)
    assert net.stages[0][1].conv2.weight.shape == (128, 4, 3, 3)
    assert cost.macs[-1] / 1e9 == pytest.approx(4.25, rel=0.01)  # ResNeXt-50 32×4d


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("denseann169", (1, 3, 20, 64), r"the nearest that works is \(1, 3, 32, 64\)"),
        ("resann50", (1, 1, 224, 224), r"the nearest that works is \(1, 3, 224, 224\)"),
        ("resann-3-16", (3, 32, 32), r"the nearest that works is \(1, 3, 32, 32\)"),
        ("msdnet-cifar", (1, 3, 2, 2), r"at least 4"),
    ],
)
def test_an_impossible_input_is_refused(name, shape, says):
    with torch.device("meta"):
        net = anytime.create_model(name)
    with pytest.raises(ValueError, match=says):
        net(torch.empty(shape, device="meta"))


def test_impossible_depths_of_densenets():
    with pytest.raises(ValueError, match="denseann-100-12"):
        anytime.create_model("denseann-99-12")


def unsettle(net):
    """Batch norm with statistics as after training, so that its order matters."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.bias, 0, 0.1)
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.8, 1.2)


@pytest.mark.parametrize(("ours", "theirs"), [("resann50", "resnetv2_50"), ("denseann169", "densenet169")])
def test_public_weights_give_public_answers(ours, theirs):
    original = public.timm().create_model(theirs).eval()
    unsettle(original)
    net = anytime.create_model(ours).eval()
    filled = anytime.load_pretrained(net, original.state_dict())
    assert not filled.unused
    assert all(name.startswith("heads.") for name in filled.untouched)
    x = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        expected, answer = original(x), net(x, only=[-1])[0]
    assert (answer - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_filling_reports_and_refuses():
    net = anytime.create_model("denseann121", num_classes=5)
    old = {"features.denseblock1.denselayer2.norm.1.weight": torch.full((96,), 3.0), "other": torch.ones(1)}
    filled = anytime.load_pretrained(net, old)
    assert list(filled.matched) == ["features.denseblock1.denselayer2.norm.1.weight"]
    assert filled.unused == ["other"]
    assert "1 tensors loaded" in str(filled)
    with pytest.raises(ValueError, match="post-activation"):
        anytime.load_pretrained(anytime.create_model("resann26"), {"layer1.0.conv1.weight": torch.ones(64, 64, 1, 1)})
    with pytest.raises(ValueError, match="no public checkpoint"):
        anytime.load_pretrained(anytime.create_model("resann-1-4"), old)


STEP = """
import resource, sys, torch, anytime
net = anytime.create_model(sys.argv[1])
x = torch.randn(int(sys.argv[2]), 3, 224, 224)
losses = torch.stack([logits.logsumexp(-1).mean() for logits in net(x)])
anytime.AdaLoss(net.exits)(losses).backward()
torch.optim.SGD(net.parameters(), lr=0.1).step()
net.eval()
with torch.no_grad():
    assert [step.exit for step in net.steps(x[:1])] == list(range(net.exits))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "MiB")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resann26", "resann50", "resann101", "denseann169", "msdnet38", "msdnet32"])
def test_full_size_training_step_and_steps(name):
    done = subprocess.run([sys.executable, "-c", STEP, name, "16"], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[0]) < 24 * 1024
    print(name, done.stdout)


@pytest.mark.parametrize("name", ["resann-1-4", "resann-1-4-patch2-mlpheads"])
def test_one_graph_holds_a_whole_network(name):
    """What torch.compile needs of a network: nothing in it that cannot be traced."""
    net = anytime.create_model(name, num_classes=5).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        for plain, traced in zip(net(x), torch.compile(net, backend="eager", fullgraph=True)(x), strict=True):
            assert torch.equal(plain, traced)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("resann-3-8", marks=pytest.mark.promise),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("resann26", "denseann-22-8", "denseann121", "msdnet32", "msdnet-cifar-budgeted")
        ),
    ],
)
def test_compiled_networks_answer_alike(name):
    net = anytime.create_model(name, num_classes=5).eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        for plain, compiled in zip(net(x), torch.compile(net)(x), strict=True):
            assert (plain - compiled).abs().max() < 1e-3 * plain.abs().max()
