"""What predictions take as input."""

import numpy as np
import pytest
import torch
from torch import nn

import anytime
from anytime.inference.policy import Policy

NET = anytime.create_model("resann-1-8").eval()
POLICY = Policy("confidence", [0.3, 0.3], [1.0] * 3, [1.0] * 3, [1.0] * 3, 1.0)
WAYS = {
    "predict": anytime.predict,
    "predict with macs": lambda net, x: anytime.predict(net, x, macs=1e12),
    "start": lambda net, x: anytime.start(net, x).result(),
    "profile": lambda net, x: anytime.profile(net, x, repeats=1, warmup=0),
    "policy": POLICY.predict,
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("way", ["predict", "predict with macs", "start", "policy"])
def test_arrays_of_floats_are_taken(way, dtype):
    x = np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(dtype)
    logits = WAYS[way](NET, x).logits
    assert torch.equal(logits, WAYS[way](NET, torch.from_numpy(x).float()).logits)


@pytest.mark.parametrize("arranged", [lambda x: x[..., ::-1], lambda x: x.astype(">f4"), np.asfortranarray])
def test_arrays_that_torch_cannot_take_as_they_are(arranged):
    x = arranged(np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32))
    expected = torch.tensor(x.tolist())
    torch.testing.assert_close(anytime.predict(NET, x).logits, anytime.predict(NET, expected).logits)


def test_arrays_in_a_dict():
    class Lookup(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(5, 4)

        def forward(self, x):
            return (self.words(x["ids"]) * x["mask"][..., None]).sum(1)

    net = anytime.AnytimeNetwork([Lookup()], [nn.Linear(4, 2)]).double().eval()
    x = {"ids": np.array([[1, 2], [3, 4]]), "mask": np.ones((2, 2))}
    as_tensors = {name: torch.from_numpy(array) for name, array in x.items()}
    assert torch.equal(anytime.predict(net, x).logits, anytime.predict(net, as_tensors).logits)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), r"uint8.*float32.*normalize pixels as in training"),
        (np.zeros((1, 3, 16, 16), np.uint8), r"uint8.*float32.*normalize pixels as in training"),
        (torch.zeros(1, 3, 16, 16, dtype=torch.float64), r"float64.*float32.*x\.to\(torch\.float32\)"),
        (np.zeros((1, 3, 16, 16), np.int64), r"int64.*float32.*x\.to\(torch\.float32\)"),
        (torch.zeros(1, 3, 16, 16, dtype=torch.bool), r"bool.*float32.*x\.to\(torch\.float32\)"),
        (np.array(["image.png"]), "array of numbers"),
        (None, "the input is None; expected a tensor or an array"),
        ("image.png", "the input is a str; expected a tensor or an array"),
        ([[0.5, 0.5]], "the input is a list; expected a tensor or an array"),
        ({"x": torch.zeros(1, 3, 16, 16)}, r"the input is a dict, which .* pass the tensor itself, x\['x'\]"),
        (
            (torch.zeros(1, 3, 16, 16), torch.zeros(1)),
            r"is a tuple, which .* the tensor itself, x\[0\], without labels",
        ),
    ],
)
def test_other_inputs_are_explained(way, x, message):
    with pytest.raises(anytime.AnytimeError, match=message):
        WAYS[way](NET, x)


@pytest.mark.parametrize("way", ["predict", "start", "policy"])
def test_containers_that_the_first_layer_does_not_take_are_explained(way):
    heads = [nn.Linear(8, 3) for _ in range(3)]
    net = anytime.AnytimeNetwork([nn.Flatten(), nn.Linear(8, 8), nn.Linear(8, 8)], heads).eval()
    for x in ({"x": torch.zeros(2, 8)}, (torch.zeros(2, 8), torch.zeros(2)), [torch.zeros(2, 8)]):
        with pytest.raises(anytime.AnytimeError, match=f"is a {type(x).__name__}, .* the tensor itself"):
            WAYS[way](net, x)


def test_errors_that_the_type_does_not_explain_stay():
    net = anytime.AnytimeNetwork([nn.Linear(2, 2)], [nn.Linear(2, 2)]).eval()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        anytime.predict(net, torch.zeros(1, 4))


def test_a_network_may_take_pixels():
    class Scale(nn.Module):
        def forward(self, x):
            return x.float().flatten(1) / 255

    net = anytime.AnytimeNetwork([Scale()], [nn.Linear(4, 2)]).eval()
    assert anytime.predict(net, torch.zeros(1, 2, 2, dtype=torch.uint8)).complete


def mlp():
    return anytime.AnytimeNetwork([nn.Linear(8, 8), nn.Linear(8, 8)], [nn.Linear(8, 3), nn.Linear(8, 3)])


BATCHES = {
    "fit": lambda net, batches: anytime.fit(net, batches, "const", epochs=1, show=False, validation=batches),
    "evaluate": anytime.evaluate,
    "calibrate": lambda net, batches: anytime.calibrate(net, batches, budget=0.9, unit="fraction"),
    "calibrate by a score": lambda net, batches: anytime.calibrate(
        net, batches, budget=0.9, unit="fraction", score=lambda outputs: outputs.amax(1)
    ),
    "combine": lambda net, batches: anytime.combine(net, "ensemble", batches),
}


@pytest.mark.parametrize("way", BATCHES)
def test_batches_take_the_precision_of_the_weights(way):
    x, y = np.random.default_rng(0).normal(size=(16, 8)), np.arange(16) % 3
    for given in (x, x[:, ::-1], x.astype(">f4"), torch.from_numpy(x)):
        BATCHES[way](mlp(), [(given, y)])
    for net in (mlp().bfloat16(), mlp().double()):
        BATCHES[way](net, [{"x": torch.from_numpy(x).float(), "labels": torch.from_numpy(y)}])
    with pytest.raises(anytime.AnytimeError, match=r"uint8.*float32.*normalize pixels as in training"):
        BATCHES[way](mlp(), [(np.zeros((16, 8), np.uint8), y)])


def test_images_take_the_precision_of_the_weights():
    images = anytime.Images(torch.randint(256, (20, 1, 8, 8), dtype=torch.uint8), torch.arange(20) % 4)
    data = anytime.Data(train=images, validation=images, test=images)
    net = anytime.create_model("resann-1-8", in_channels=1, num_classes=4).bfloat16()
    anytime.fit(net, data, "const", epochs=1, batch_size=10, show=False)
    assert net.preprocess(images.pixels).dtype == torch.bfloat16
    assert anytime.predict(net.eval(), net.preprocess(images.pixels)).complete
    batches = [(net.preprocess(images.pixels), images.labels)]
    curve, logits = anytime.evaluate(net, batches), net(batches[0][0])
    own = [nn.functional.cross_entropy(each.float(), images.labels).item() for each in logits]
    assert curve.losses == pytest.approx(own, rel=1e-5)
