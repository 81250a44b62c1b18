"""Inputs of other sizes than the example's: the same numbers as the model's own, wherever the model takes them."""

import copy
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_convert import Small
from test_heads import PatchTokens, PerPixel, conv_block
from torch import nn

import anytime
from anytime.conversion import sizes


def graphs(net):
    """How many graphs a network holds."""
    return len(net.stages[0].parts)


@pytest.fixture(scope="module")
def small():
    model = Small().eval()
    return model, anytime.convert(model, torch.randn(1, 3, 12, 12), exits=3)


@settings(max_examples=25)
@given(samples=st.integers(1, 3), height=st.integers(2, 40), width=st.integers(2, 40))
def test_images_of_any_size_are_answered_as_the_model_does_by_one_graph(small, samples, height, width):
    model, net = small
    x = torch.randn(samples, 3, height, width)
    with torch.inference_mode():
        outputs = net(x)
        assert torch.equal(outputs[-1], model(x))
        assert [logits.shape for logits in outputs] == [(samples, 5)] * 3
    assert graphs(net) <= 2  # the example's, and one for all others


def test_everything_works_at_another_size(small):
    model, net = small
    x = torch.randn(4, 3, 17, 9)
    whole = net(x)
    assert torch.equal(copy.deepcopy(net)(x)[0], whole[0])
    assert torch.equal(anytime.predict(net, x, exits=2).logits, whole[1])
    walk = net.walk(x)
    next(walk)
    rest = walk.send(torch.tensor([0, 3]))
    assert torch.allclose(rest(), whole[1][[0, 3]], atol=1e-5)
    macs = anytime.costs(net, torch.empty(1, 3, 24, 24, device="meta")).macs
    assert macs[0] > 3.5 * anytime.costs(net, torch.zeros(1, 3, 12, 12)).macs[0]
    labels = torch.zeros(4, dtype=torch.long)
    assert anytime.evaluate(net, [(x, labels), (torch.randn(4, 3, 5, 7), labels)]).images == 8
    anytime.fit(net, [(x, labels), (torch.randn(4, 3, 5, 7), labels)], epochs=1, lr=0.001, show=False)
    assert torch.equal(net.eval()(x)[-1], model.eval()(x))  # with the new weights


def test_outputs_per_pixel_have_the_size_of_the_models_own():
    model = PerPixel()
    net = anytime.convert(model, torch.randn(1, 3, 12, 12), exits=3)
    for size in ((16, 16), (17, 20), (31, 9)):
        x = torch.randn(2, 3, *size)
        outputs = net.eval()(x)
        assert torch.equal(outputs[-1], model(x)["out"])
        assert [logits.shape for logits in outputs] == [(2, 5, *size)] * 3
        assert [logits.shape for logits in net.train()(x)] == [(2, 5, *size)] * 3


def test_patches_follow_the_size():
    model = PatchTokens(class_token=True).eval()
    net = anytime.convert(model, torch.randn(1, 3, 16, 16), exits=3).eval()
    x = torch.randn(2, 3, 24, 32)
    outputs = net(x)
    assert torch.allclose(outputs[-1], model(x), atol=1e-6)
    assert [logits.shape for logits in outputs] == [(2, 5, 24, 32)] * 3


class Flat(nn.Sequential):
    def __init__(self):
        super().__init__(conv_block(3, 4), conv_block(4, 4), conv_block(4, 4), nn.Flatten(), nn.Linear(4 * 64, 3))


def test_a_model_of_one_size_says_so():
    net = anytime.convert(Flat(), torch.randn(1, 3, 8, 8), exits=2).eval()
    with pytest.raises(
        anytime.AnytimeError,
        match=r"got \(1, 3, 9, 8\) where the model was captured with .*\(any, 3, 8, 8\), and the model itself fails",
    ):
        net(torch.randn(1, 3, 9, 8))
    assert net(torch.randn(3, 3, 8, 8))[-1].shape == (3, 3)  # and goes on


class ByRow(Small):
    """Another graph for each height."""

    def forward(self, x):
        rows = [row * (1 + i) for i, row in enumerate(x.unbind(2))]
        return super().forward(torch.stack(rows, 2))


def test_a_graph_for_each_size_where_one_does_not_fit_all(monkeypatch):
    monkeypatch.setattr(sizes, "MOST", 3)
    model = ByRow(blocks=2).eval()
    net = anytime.convert(model, torch.randn(1, 3, 8, 8), exits=2).eval()
    for height in (9, 10, 9, 8):
        x = torch.randn(2, 3, height, 8)
        assert torch.equal(net(x)[-1], model(x))
    assert graphs(net) == 3
    with pytest.raises(anytime.AnytimeError, match="another one for each size, and 3 are held already"):
        net(torch.randn(2, 3, 12, 8))


class Watched(Small):
    """Calls ``watch`` with the images that its own code runs on, unless it is being captured."""

    watch = None

    def forward(self, x):
        if self.watch is not None and not torch.compiler.is_exporting():
            x = self.watch(x)
        return super().forward(x)


def test_no_thread_is_answered_by_a_graph_that_is_not_verified():
    model = Watched(blocks=2).eval()
    net = anytime.convert(model, torch.randn(1, 3, 12, 12), exits=2).eval()
    x, given, early = torch.randn(2, 3, 9, 9), [], []
    own = model(x)
    readers = [threading.Thread(target=lambda: given.append(net(x)[-1])) for _ in range(2)]

    def watch(images):
        if len(images) != 3:  # verification is with one sample more than the two that a graph is captured with
            return images
        reader = readers[len(early)]
        reader.start()
        reader.join(0.5)
        early.append(not reader.is_alive())
        # The first graph is found to be wrong, the second to be right.
        return images + 1 if len(early) == 1 else images

    model.watch = watch
    answer = net(x)[-1]
    for reader in readers:
        reader.join()
    assert early == [False, False]
    assert [torch.equal(each, own) for each in (answer, *given)] == [True] * 3
    assert graphs(net) == 2


def test_export_refuses_a_free_image_size(small, tmp_path):
    pytest.importorskip("onnx")
    export = anytime.export.onnx
    _, net = small
    with pytest.raises(anytime.AnytimeError, match="another graph for the sizes of `other`"):
        export(net, torch.randn(1, 3, 12, 12), tmp_path / "net", other=torch.randn(1, 3, 16, 16))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["timm:resnet18", "timm:convnext_atto", "timm:efficientnet_b0", "torchvision:lraspp_mobilenet_v3_large",
     "torchvision:fcn_resnet50", "torchvision:densenet121"],
)  # fmt: skip
def test_public_models_take_other_sizes(name):
    """`pytest -m slow tests/conversion/test_sizes.py`, a few minutes."""
    from anytime.conversion.constructors import build_converted

    library = name.partition(":")[0]
    pytest.importorskip(library)
    net = build_converted(name, (3, 64, 64), 3, {"num_classes": 5}).eval()
    for size in ((96, 64), (65, 81), (128, 128)):
        x = torch.randn(2, 3, *size)
        with torch.inference_mode():
            own = net.trunk(x)
            outputs = net(x)
        assert torch.equal(outputs[-1], own)
        assert {logits.shape for logits in outputs} == {own.shape}
    assert graphs(net) <= 3
