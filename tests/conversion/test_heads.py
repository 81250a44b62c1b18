"""Every exit's output has the shape of the model's own, whatever that is."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import anytime
from anytime.conversion.head_layers import Moments, MomentsHead


def conv_block(inside, outside, stride=1, dims=2):
    conv, norm = ((nn.Conv1d, nn.BatchNorm1d), (nn.Conv2d, nn.BatchNorm2d), (nn.Conv3d, nn.BatchNorm3d))[dims - 1]
    return nn.Sequential(conv(inside, outside, 3, stride, padding=1), norm(outside), nn.ReLU())


class PerPixel(nn.Module):
    """A segmentation network: features at half of the size, logits at all of it."""

    def __init__(self, classes=5, dims=2):
        super().__init__()
        self.blocks = nn.Sequential(
            conv_block(3, 8, dims=dims),
            conv_block(8, 8, 2, dims=dims),
            *(conv_block(8, 8, dims=dims) for _ in range(4)),
        )
        self.classifier = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](8, classes, 1)

    def forward(self, x):
        return {"out": F.interpolate(self.classifier(self.blocks(x)), size=x.shape[2:])}  # as torchvision returns it


class PatchTokens(nn.Module):
    """A vision transformer that labels pixels."""

    def __init__(self, class_token=False, width=16):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width)) if class_token else None
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(4))
        self.classifier = nn.Conv2d(width, 5, 1)

    def forward(self, x):
        x = self.patches(x)
        grid, x = x.shape[2:], x.flatten(2).mT
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1)
        for layer in self.layers:
            x = x + F.scaled_dot_product_attention(x, x, layer(x))
        x = x[:, -grid.numel() :].mT.unflatten(2, grid)
        return F.interpolate(self.classifier(x), scale_factor=4, mode="bilinear")


class PerToken(nn.Module):
    def __init__(self, time_first=False):
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.layers = nn.ModuleList(nn.GRU(16, 16, batch_first=not time_first) for _ in range(4))
        self.fc, self.time_first = nn.Linear(16, 3), time_first

    def forward(self, ids):
        x = self.embed(ids.T if self.time_first else ids)
        for layer in self.layers:
            x, _ = layer(x)
        return self.fc(x.transpose(0, 1) if self.time_first else x)


def vectors(width=7):
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(4)), nn.Linear(16, width))


IMAGE = torch.randn(2, 3, 16, 24)
IDS = torch.randint(30, (2, 7))


@pytest.mark.parametrize(
    ("model", "x", "head"),
    [
        (PerPixel(), IMAGE, "PixelHead"),
        (PerPixel(classes=24), IMAGE, "PixelHead"),  # as many classes as columns
        (PerPixel(dims=1), torch.randn(2, 3, 20), "PixelHead"),
        (PerPixel(dims=3), torch.randn(2, 3, 8, 6, 4), "PixelHead"),
        (PatchTokens(), IMAGE, "GridHead"),
        (PatchTokens(class_token=True), IMAGE, "GridHead"),
        (PerToken(), IDS, "VectorHead"),
        (PerToken(time_first=True), IDS, "VectorHead"),
        (vectors(1), torch.randn(2, 16), "VectorHead"),
        (vectors(100), torch.randn(2, 16), "VectorHead"),
    ],
)
def test_all_exits_have_the_shape_of_the_models_own_output(model, x, head):
    net = anytime.convert(model.eval(), x[:1], exits=3)
    assert net.paused_because is None
    assert type(net.heads[0].head).__name__ == head
    more = torch.cat([x, x])
    with torch.no_grad():
        own = net.trunk(more)
        for mode in (False, True):
            assert [output.shape for output in net.train(mode)(more)] == [own.shape] * 3
        assert torch.equal(net.eval()(x)[-1], net.trunk(x))
        assert anytime.predict(net, x, exits=1).logits.shape == own[:2].shape


def test_a_segmentation_model_learns_at_every_exit():
    torch.manual_seed(0)
    labels = (IMAGE[:, 0] > 0).long()
    net = anytime.convert(PerPixel(classes=2).train(), IMAGE, exits=3)
    balance, optimizer = anytime.AdaLoss(net.exits), torch.optim.Adam(net.parameters(), lr=0.02)
    history = []
    for _ in range(30):
        losses = torch.stack([F.cross_entropy(logits, labels) for logits in net(IMAGE)])
        optimizer.zero_grad()
        balance(losses).backward()
        optimizer.step()
        history.append(losses.detach())
    assert (history[-1] < 0.9 * history[0]).all()
    assert all(p.grad is not None for p in net.parameters())


def test_the_number_of_outputs_of_ones_own_heads():
    asked = []

    def head(shape, outputs):
        asked.append((shape, outputs))
        return nn.Sequential(nn.Conv2d(shape[1], outputs, 1), nn.Upsample((16, 24)))

    net = anytime.convert(PerPixel(), IMAGE, exits=2, head=head).eval()
    assert asked == [((2, 8, 8, 12), 5)]  # the channels of the output, not the image's width
    assert [output.shape for output in net(IMAGE)] == [(2, 5, 16, 24)] * 2
    anytime.convert(
        PerToken(time_first=True), IDS, exits=2, head=lambda *given: asked.append(given) or nn.Linear(16, 3)
    )
    assert asked[1] == ((2, 7, 16), 3), "samples first"


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (lambda shape, _: nn.Conv2d(shape[1], 24, 1), r"returns \(2, 24, 8, 12\); expected .* \(2, 5, 16, 24\)"),
        (lambda _shape, _outputs: nn.Conv2d(3, 5, 1), "and fails: "),
        (lambda shape: nn.Conv2d(shape[1], 5, 1), r"head\(.*\) fails: TypeError"),
        (lambda _shape, _outputs: None, "returned NoneType; expected an nn.Module"),
    ],
)
def test_wrong_heads_are_refused(head, message):
    with pytest.raises(anytime.AnytimeError, match=message):
        anytime.convert(PerPixel(), IMAGE, exits=2, head=head)


def test_where_there_is_no_default_head():
    class Depth(PerPixel):
        def forward(self, x):
            return super().forward(x)["out"][:, 0]  # samples × height × width

    for exits in (2, ["blocks.3"]):
        with pytest.raises(anytime.AnytimeError, match=r"no default head from .*\(2, 16, 24\); pass one.*head=lambda"):
            anytime.convert(Depth(), IMAGE, exits=exits)
    assert anytime.convert(Depth(), IMAGE, exits=1).exits == 1
    net = anytime.convert(
        Depth(),
        IMAGE,
        exits=2,
        head=lambda *_: nn.Sequential(nn.Flatten(), nn.LazyLinear(384), nn.Unflatten(1, (16, 24))),
    )
    assert net.eval()(IMAGE)[0].shape == (2, 16, 24)


def test_conversion_leaves_new_heads_as_they_were_made():
    net = anytime.convert(PerPixel(), IMAGE, exits=3).train()
    assert net.heads[0].head.bn.num_batches_tracked == 0
    assert torch.equal(net.heads[0].head.bn.running_mean, torch.zeros(8))


def maps(channels=8, dims=2):
    pool = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[dims - 1](1)
    blocks = [conv_block(3 if not i else channels, channels, dims=dims) for i in range(3)]
    return nn.Sequential(*blocks, pool, nn.Flatten(), nn.Linear(channels, 4))


@pytest.mark.parametrize(
    ("model", "x", "kind", "head"),
    [
        (maps(), IMAGE, "auto", "MomentsHead"),
        (maps(), IMAGE, "mlp", "MomentsHead"),
        (maps(), IMAGE, "linear", "LinearHead"),
        (maps(dims=1), torch.randn(2, 3, 20), "auto", "MomentsHead"),
        (maps(dims=3), torch.randn(2, 3, 5, 4, 6), "auto", "MomentsHead"),
        (maps(dims=1), torch.randn(2, 3, 20), "linear", "MapHead"),
        (vectors(), torch.randn(2, 16), "auto", "VectorHead"),
        (vectors(), torch.randn(2, 16), "mlp", "VectorHead"),
        (PerToken(), IDS, "mlp", "VectorHead"),
    ],
)
def test_heads_by_name(model, x, kind, head):
    net = anytime.convert(model.eval(), x, exits=3, head=kind)
    assert net.paused_because is None
    assert {type(exit.head).__name__ for exit in list(net.heads)[:-1]} == {head}
    layers = sum(isinstance(module, nn.Linear) for module in net.heads[0].modules())
    assert layers == (2 if kind == "mlp" or head == "MomentsHead" else 1)


def test_unknown_heads_are_refused():
    for head in ("tanh", 3, None):
        with pytest.raises(anytime.AnytimeError, match="'linear', 'mlp', 'own', or a function"):
            anytime.convert(maps(), IMAGE, exits=2, head=head)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 3), st.integers(0, 1000), st.floats(-100, 100))
def test_moments_are_means_and_deviations_of_the_cells(dims, seed, offset):
    torch.manual_seed(seed)
    cells = ((4,), (2, 2), (2, 2, 2))[dims - 1]
    x = torch.randn(2, 3, *(4 * n for n in cells)) + offset
    found = Moments(cells)(x).unflatten(2, cells)
    for place in itertools.product(*map(range, cells)):
        cell = x[(..., *(slice(4 * i, 4 * i + 4) for i in place))].flatten(2)
        assert torch.allclose(found[:, :3][(..., *place)], cell.mean(2), atol=1e-4)
        deviation = (cell.var(2, correction=0) + 1e-5).sqrt()
        assert torch.allclose(found[:, 3:][(..., *place)], deviation, atol=1e-3)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=2))
def test_cells_of_uneven_maps_are_those_of_adaptive_pooling(size):
    x = torch.randn(2, 3, *size)
    found = Moments((2, 2))(x)[:, :3].unflatten(2, (2, 2))
    assert torch.allclose(found, F.adaptive_avg_pool2d(x, 2), atol=1e-5)


@pytest.mark.parametrize("x", [torch.zeros(1, 3, 8, 8), torch.ones(1, 3, 1, 1), 1e4 + torch.randn(1, 3, 5, 7)])
def test_one_sample_of_any_size_gives_finite_gradients(x):
    head = MomentsHead(3, 4).train()
    x = x.requires_grad_()
    head(x).square().sum().backward()
    assert x.grad is not None
    assert all(value.isfinite().all() for value in (x.grad, *(p.grad for p in head.parameters())))


def test_what_a_head_pools_does_not_depend_on_its_parameters():
    """A training of frozen networks keeps it."""
    net = anytime.convert(maps().eval(), IMAGE, exits=3).freeze()
    before = net.features(IMAGE)
    with torch.no_grad():
        for parameter in net.heads.parameters():
            parameter += 1
    after = net.features(IMAGE)
    assert all(
        torch.equal(a, b) for one, other in zip(before, after, strict=True) for a, b in zip(one, other, strict=True)
    )
    assert [tuple(pooled[0].shape) for pooled in after[:-1]] == [(2, 16, 4)] * 2
    answers = net.eval()(IMAGE)
    assert all(map(torch.equal, net.answers(after), answers))
