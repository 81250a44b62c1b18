import itertools

import laws
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anytime
from anytime.models.layers import LinearHead, MLPHead
from anytime.models.placement import place_exits
from anytime.models.resann import between


def resann_macs(n, c, classes, exits_after):
    """ResANN(n, c)'s MACs at 3×32×32 counted by hand, to every exit."""
    total, result = 27 * c * 1024, []
    for unit in range(1, 3 * n + 1):
        block = (unit - 1) // n
        width, pixels = c * 2**block, 1024 // 4**block
        before = width // 2 if block and (unit - 1) % n == 0 else width
        total += 9 * (before + width) * width * pixels
        if unit in exits_after:
            total += width * classes
            result.append(total)
    return result


@pytest.mark.parametrize("name", anytime.list_models("resann-*-*"))
def test_the_papers_twelve(name):
    n, c = map(int, name.split("-")[1:])
    with torch.device("meta"):
        net = anytime.create_model(name, num_classes=100)
    cost = anytime.costs(net, torch.empty(1, 3, 32, 32, device="meta"))
    exits = range(1, 3 * n + 1) if n < 25 else range(3, 76, 3)
    assert cost.macs == resann_macs(n, c, 100, exits)
    assert cost.macs == sorted(set(cost.macs))


def test_the_known_total():
    cost = anytime.costs(anytime.create_model("resann-9-16", num_classes=100), torch.empty(1, 3, 32, 32))
    assert cost.macs[-1] / 1e6 == pytest.approx(125.6, rel=1e-3)
    assert cost.params[-1] / 1e6 == pytest.approx(0.96, abs=0.005)


@settings(max_examples=30)
@given(
    n=st.integers(1, 3),
    c=st.integers(1, 9),
    period=st.integers(1, 3),
    channels=st.integers(1, 4),
    height=st.integers(8, 33),
    width=st.integers(8, 33),
    patch=st.integers(1, 3),
)
def test_any_resann_obeys_the_laws(n, c, period, channels, height, width, patch):
    net = anytime.create_model(f"resann-{n}-{c}-patch{patch}", num_classes=5, in_channels=channels, period=period)
    x = torch.randn(2, channels, height * patch, width * patch)
    assert net.exits == len(place_exits(3 * n, period))
    laws.prefix_law(net, x)
    laws.skipping_law(net, x, [-1])
    laws.save_law(net, x)
    laws.cost_law(net, x)


@given(st.integers(1, 100), st.integers(1, 100))
def test_exits_are_placed_backwards_from_the_end(units, period):
    if period > units:
        with pytest.raises(ValueError, match=f">= 1 and <= {units}"):
            place_exits(units, period)
    else:
        zero_based = list(range((units - 1) % period, units, period))
        assert place_exits(units, period) == [unit + 1 for unit in zero_based]
        assert place_exits(units, period)[-1] == units


@pytest.mark.parametrize(
    ("exits", "nearest"), [([3, 1, 9], "[1, 3, 9]"), ([1, 4], "[1, 4, 9]"), ([0, 9], "[1, 9]"), ([5, 12], "[5, 9]")]
)
def test_impossible_exits_are_refused_with_the_nearest_that_work(exits, nearest):
    with pytest.raises(ValueError) as error:
        anytime.create_model("resann-3-4", exits=exits)
    assert f"exits={nearest}" in str(error.value)


@pytest.mark.parametrize(
    "options", [{"exits": [1.0, 9.0]}, {"exits": "abc"}, {"exits": 3}, {"period": 1.5}, {"period": True}]
)
def test_exits_of_the_wrong_kind(options):
    with pytest.raises(anytime.AnytimeError, match=r"1 to 9|>= 1 and <= 9"):
        anytime.create_model("resann-3-4", **options)


def test_exits_by_unit():
    assert anytime.create_model("resann-3-4", exits=[2, 5, 9]).exits == 3
    with pytest.raises(ValueError, match="one of them"):
        anytime.create_model("resann-3-4", exits=[9], period=1)


@pytest.mark.parametrize("name", ["resnet18", "resann-3", "vgg"])
def test_an_unknown_name_that_is_like_none_is_told_what_can_be_built(name):
    with pytest.raises(ValueError, match=r"resann-N-C builds other sizes.*--model timm:resnet18") as error:
        anytime.create_model(name)
    assert "did you mean" not in str(error.value)


def test_names_may_be_upper_case():
    assert anytime.create_model("ResANN-1-8").config == {"model": "resann-1-8"}


def test_an_unknown_name_is_told_the_near_ones():
    with pytest.raises(ValueError, match="resann-9-16"):
        anytime.create_model("resan-9-16")
    with pytest.raises(ValueError, match="it takes num_classes, in_channels, period, exits"):
        anytime.create_model("resann-9-16", classes=3)
    with pytest.raises(ValueError, match="must be an integer >= 1"):
        anytime.create_model("resann-0-16")


@pytest.mark.parametrize("name", ["resann-1-5", "denseann-10-2", "msdnet-cifar-2-1-1"])
@given(patch=st.integers(1, 4), channels=st.integers(1, 4), size=st.integers(8, 12))
def test_a_patch_stem_is_a_convolution_of_patches(name, patch, channels, size):
    net = anytime.create_model(f"{name}-patch{patch}", in_channels=channels)
    conv = next(module for module in net.modules() if isinstance(module, torch.nn.Conv2d))
    c = conv.out_channels
    by_patch = conv.weight.view(c, channels, 3, patch, 3, patch).permute(0, 1, 3, 5, 2, 4)
    x = torch.randn(2, channels, size * patch, size * patch)
    patches = torch.nn.functional.pixel_unshuffle(x, patch)
    expected = torch.nn.functional.conv2d(patches, by_patch.reshape(c, -1, 3, 3), padding=1)
    torch.testing.assert_close(conv(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["resann-2-8", "denseann-46-5", "msdnet-cifar-4-2-1"])
def test_patches_make_it_cheaper_by_their_area(name):
    plain, patched = (anytime.create_model(f"{name}{patch}") for patch in ("", "-patch2"))
    whole, half = (anytime.costs(plain, torch.empty(1, 3, size, size)).macs for size in (32, 16))
    macs = anytime.costs(patched, torch.empty(1, 3, 32, 32)).macs
    assert [cost - macs[0] for cost in macs] == [cost - half[0] for cost in half]
    assert macs[-1] < whole[-1] / 3
    assert patched.image_size == 32
    laws.prefix_law(patched, torch.randn(2, 3, 32, 32))
    with pytest.raises(anytime.AnytimeError, match="at least"):
        patched(torch.zeros(1, 3, 7, 7))


def test_patches_are_for_small_images():
    for name, small in (("denseann121", "small=True"), ("msdnet-imagenet-step4", "imagenet=True")):
        with pytest.raises(anytime.AnytimeError, match=f"patch=2 is for small images.*{small}"):
            anytime.create_model(name, patch=2)


def test_sizes_between_share_their_patches():
    assert between("resann-1-8-patch2", "resann-2-8-patch2") == ["resann-1-8-patch2", "resann-2-8-patch2"]
    with pytest.raises(anytime.AnytimeError, match="one width"):
        between("resann-1-8", "resann-2-8-patch2")
    with pytest.raises(anytime.AnytimeError, match="at least 16"):
        anytime.create_model("resann-2-8-patch2")(torch.zeros(1, 3, 15, 15))


@settings(deadline=None, max_examples=20)
@given(n=st.integers(1, 3), c=st.integers(1, 4), patch=st.integers(1, 2), size=st.integers(16, 40))
def test_mlp_heads_are_the_early_ones_and_take_any_size(n, c, patch, size):
    net = anytime.create_model(f"resann-{n}-{c}-patch{patch}-mlpheads", num_classes=5)
    plain = anytime.create_model(f"resann-{n}-{c}-patch{patch}", num_classes=5)
    assert [type(head) for head in net.heads] == [MLPHead] * 2 * n + [LinearHead] * n
    laws.prefix_law(net, torch.randn(2, 3, size, size))
    macs = [anytime.costs(each, torch.empty(1, 3, 32, 32)).macs for each in (net, plain)]
    extra = [ours - theirs for ours, theirs in zip(*macs, strict=True)]
    each = [16 * w * 8 * c + 8 * c * 5 - w * 5 for w in [c] * n + [2 * c] * n] + [0] * n
    assert extra == list(itertools.accumulate(each))


def test_mlp_heads_train_on_one_sample():
    net = anytime.create_model("resann-1-4-mlpheads").train()
    sum(logits.square().sum() for logits in net(torch.randn(1, 3, 32, 32))).backward()
    assert all(parameter.grad is not None for parameter in net.heads.parameters())


def test_sizes_between_share_their_heads():
    assert between("resann-1-8-mlpheads", "resann-2-8-mlpheads") == ["resann-1-8-mlpheads", "resann-2-8-mlpheads"]
    with pytest.raises(anytime.AnytimeError, match="one width"):
        between("resann-1-8", "resann-2-8-mlpheads")


def test_convolutions_start_as_he_said():
    net = anytime.create_model("resann-1-64")
    weight = net.stages[2].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (9 * 256)) ** 0.5, rel=0.02)
    stem = next(anytime.create_model("resann-1-64-patch3").parameters())
    assert stem.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.05)
