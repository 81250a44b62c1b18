"""A network as ONNX graphs: every exit as it was, for any batch."""

import copy

import laws
import numpy as np
import pytest
import torch
from torch import nn

import anytime
from anytime.export.exported import ExportedState
from anytime.export.write import distance
from anytime.rows import Rows

pytest.importorskip("onnxruntime", reason='needs: pip install "anytime-nets[onnx]"')

FAMILIES = {
    "resann": lambda: anytime.create_model("resann-2-8", num_classes=10),
    "patches": lambda: anytime.create_model("resann-1-8-patch2"),
    "bottlenecks": lambda: anytime.models.BottleneckResANN((1, 1, 1, 1), num_classes=5, period=1),
    "denseann": lambda: anytime.models.DenseANN((3, 3), 4, 8, num_classes=10, small=True, exits=[2, 4, 6]),
    "msdnet": lambda: anytime.create_model("msdnet-cifar-3-1-1"),
    "msdnet of the paper": lambda: anytime.models.BlockMSDNet((3, 2, 2, 2), growth=4, num_classes=5, exits=[4, 6, 9]),
}


def lively(net):
    """Batch norm with statistics as after some training, so that no two exits are alike by chance."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
    return net.eval()


def images(samples, size=32):
    return torch.randn(samples, 3, size, size, generator=torch.Generator().manual_seed(samples))


def exported(net, example, folder, **options):
    return anytime.load_exported(anytime.export.onnx(net, example, folder, **options))


def parity_law(net, found, inputs, only=None):
    """Every exit agrees with the network's to 1e-4 of its largest logit."""
    worst = 0.0
    for x in inputs:
        with torch.no_grad():
            expected = net.eval()(x, only)
        steps = list(found.steps(x))
        assert [step.exit for step in steps] == list(range(len(expected))), "one step for each exit"
        worst = max(worst, *(distance(s.logits, e) for s, e in zip(steps, expected, strict=True)))
    assert worst <= 1e-4
    return worst


def test_mlp_heads_are_as_they_were(tmp_path):
    net = lively(anytime.create_model("resann-1-8-mlpheads"))
    parity_law(net, exported(net, images(2), tmp_path), [images(1), images(3)])


@pytest.mark.parametrize("name", FAMILIES)
def test_every_exit_is_as_it_was(name, tmp_path):
    net = lively(FAMILIES[name]())
    found = exported(net, images(1), tmp_path)
    assert found.exits == net.exits
    parity_law(net, found, map(images, (1, 3, 17)))
    laws.narrowing_law(found, images(5))
    laws.joining_law(found, images(4))
    assert anytime.costs(found, images(3)) == anytime.costs(net, images(3))


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "OpenVINOExecutionProvider"])
def test_another_provider(provider, tmp_path):
    """Whatever computes in ONNX Runtime, every exit is as it was."""
    import onnxruntime

    if provider not in onnxruntime.get_available_providers():
        pytest.skip(f"needs an ONNX Runtime with the {provider}, e.g. pip install onnxruntime-openvino")
    net = lively(FAMILIES["resann"]())
    folder = anytime.export.onnx(net, images(1), tmp_path)
    parity_law(net, anytime.load_exported(folder, provider=provider), map(images, (1, 3)))


def test_a_provider_that_is_not_there(tmp_path):
    folder = anytime.export.onnx(FAMILIES["resann"]().eval(), images(1), tmp_path)
    with pytest.raises(anytime.AnytimeError, match=r"TeaExecutionProvider.*which has .*CPUExecutionProvider"):
        anytime.load_exported(folder, provider="TeaExecutionProvider")


def test_an_ensemble(tmp_path):
    """Its members begin with the image; stages without an offered exit are part of the next."""
    nets = [lively(anytime.create_model(name)) for name in ("resann-1-8", "resann-2-8")]
    eann = anytime.EANN(nets).eval()
    eann.offered = [(0, 0), (0, 2), (1, 3), (1, 5)]
    found = exported(eann, images(1), tmp_path)
    assert found.exits == len(found.stages) == 4
    parity_law(eann, found, map(images, (1, 3)))
    laws.narrowing_law(found, images(5))
    laws.joining_law(found, images(4))
    cost = anytime.costs(found, images(1))
    assert (cost.macs, cost.params) == (anytime.costs(eann, images(1)).macs, anytime.costs(eann, images(1)).params)
    only_two = exported(eann, images(1), tmp_path, exits=[1, 2])
    assert len(list(tmp_path.glob("*.onnx"))) == 4, "files of the earlier export are gone"
    parity_law(eann, only_two, [images(3)], only=[1, 2])


class Doubles(nn.Module):
    """A state of several tensors: one passes through, one is changed in place, one has samples not first."""

    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, state):
        x = state["x"] if isinstance(state, dict) else state
        kept = state["kept"] if isinstance(state, dict) else x * 2
        return {"x": torch.relu_(self.linear(x)).add_(kept), "kept": kept, "none": None, "length": 3}


class First(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 4)

    def forward(self, state):
        return self.linear(state["x"])


def test_states_of_several_tensors(tmp_path):
    net = anytime.AnytimeNetwork([Doubles(6) for _ in range(3)], [First(6) for _ in range(3)]).eval()
    found = exported(net, torch.randn(2, 6), tmp_path)
    kept = set.intersection(*map(set, found.description.states[:-1]))
    assert len(kept) == 1, "what passes through is not copied from stage to stage"
    parity_law(net, found, [torch.randn(n, 6) for n in (1, 3, 17)])
    laws.narrowing_law(found, torch.randn(5, 6))
    laws.joining_law(found, torch.randn(4, 6))


class Folds(nn.Module):
    """Counts its samples in Python, in two ways, which a trace does not see."""

    def __init__(self, factor):
        super().__init__()
        self.weight = nn.Parameter(torch.full((6, 6), factor))

    def forward(self, x):
        folded = x.reshape(int(x.shape[0]) * 2, 3)
        return (folded.reshape(len(x), 6) @ self.weight) + x


@pytest.mark.parametrize("stage", [lambda: Folds(0.1), lambda: nn.RMSNorm(6)], ids=["samples", "operation"])
def test_what_a_trace_cannot_follow_is_captured(stage, tmp_path, capfd):
    net = anytime.AnytimeNetwork([stage(), stage()], [nn.Linear(6, 2), nn.Linear(6, 2)]).eval()
    parity_law(net, exported(net, torch.randn(2, 6), tmp_path), [torch.randn(n, 6) for n in (1, 3, 17)])
    assert capfd.readouterr().out == "", "the attempt that failed says nothing"


def test_heads_of_other_widths(tmp_path):
    net = anytime.AnytimeNetwork([nn.Linear(6, 6), nn.Linear(6, 6)], [nn.Linear(6, 4), nn.Linear(6, 2)]).eval()
    found = exported(net, torch.randn(2, 6), tmp_path)
    assert found.description.values["logits"].shape == ("batch", "any")
    parity_law(net, found, [torch.randn(n, 6) for n in (1, 3)])


class Twice(nn.Module):
    """Its state holds a tensor twice."""

    def forward(self, state):
        x = state[0] * 2 + state[1] if isinstance(state, tuple) else state
        return (x + 1,) * 2


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, state):
        return self.linear(state[0] + state[1])


def test_a_tensor_that_is_twice_in_a_state(tmp_path):
    net = anytime.AnytimeNetwork([Twice(), Twice()], [Sum(), Sum()]).eval()
    parity_law(net, exported(net, torch.randn(2, 6), tmp_path), [torch.randn(n, 6) for n in (1, 3)])


def test_weights_of_several_stages_are_stored_once(tmp_path):
    stage = nn.Linear(64, 64)
    net = anytime.AnytimeNetwork([stage] * 5, [nn.Linear(64, 3) for _ in range(5)]).eval()
    found = exported(net, torch.randn(2, 64), tmp_path)
    assert (tmp_path / "shared.bin").stat().st_size == 64 * 64 * 4
    assert sum(path.stat().st_size for path in tmp_path.glob("*.onnx")) < 64 * 64 * 4
    parity_law(net, found, [torch.randn(3, 64)])


def test_chosen_exits_are_fewer_graphs(tmp_path):
    net = lively(FAMILIES["resann"]())
    found = exported(net, images(1), tmp_path, exits=[1, 3, -1])
    assert found.exits == 3
    assert found.description.exits == [2, 4, 6]
    parity_law(net, found, map(images, (1, 3)), only=[1, 3, 5])
    cost, whole = anytime.costs(found, images(1)), anytime.costs(net, images(1))
    assert cost.alone == [whole.alone[i] for i in (1, 3, 5)]
    assert cost.params[-1] == whole.params[-1] - sum(p.numel() for i in (0, 2, 4) for p in net.heads[i].parameters())


def test_any_size(tmp_path):
    net = lively(FAMILIES["resann"]())
    found = exported(net, images(1), tmp_path, other=images(1, 48))
    parity_law(net, found, [images(2), images(1, 48), images(3, 40)])
    assert anytime.predict(found, images(1)).macs == anytime.costs(net, images(1)).alone[-1]
    assert anytime.predict(found, images(1, 48)).macs is None, "counted for another size"


def test_costs_that_are_not_known_are_said_before_anything_is_measured(tmp_path):
    net, large = FAMILIES["patches"]().eval(), images(8, 48)
    found = exported(net, images(1), tmp_path, other=images(1, 48))

    def batches():
        yield large, torch.arange(8)
        raise AssertionError("went on to the second batch")

    for call in (
        lambda: anytime.costs(found, large),
        lambda: anytime.evaluate(found, batches()),
        lambda: anytime.calibrate(found, batches(), 0.5),
    ):
        with pytest.raises(anytime.AnytimeError, match=r"costs are known for inputs of the shape.*export the network"):
            call()
    policy = anytime.calibrate(found, [(large, torch.arange(8))], 10.0, "seconds")
    assert policy.unit == "seconds", "these are measured"


def test_a_data_set_is_evaluated(tmp_path):
    data, net = anytime.load_data("digits"), anytime.create_model("resann-1-4", in_channels=1).eval()
    found = exported(net, data.normalize(data.test.pixels[:1]), tmp_path)
    assert anytime.evaluate(found, data).errors == anytime.evaluate(net, data).errors


def test_arrays_and_tensors_and_other_precisions(tmp_path):
    net = lively(FAMILIES["resann"]())
    found, x = exported(net, images(1), tmp_path), images(2)
    coarse = x.bfloat16()
    assert all(torch.equal(a, b) for a, b in zip(found(coarse), found(coarse.float()), strict=True))
    for given in (x.numpy(), x.double(), x.numpy().astype(np.float64), x.contiguous(memory_format=torch.channels_last)):
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found(given), found(x), strict=True))
        assert torch.allclose(anytime.predict(found, given).logits, list(found.steps(x))[-1].logits, atol=1e-5)
    walk = found.walk(x.numpy())
    assert torch.allclose(next(walk)(), next(found.steps(x)).logits, atol=1e-5)
    for wrong, message in [
        (images(1, 16), "batch × 3 × 32 × 32"),
        (x.byte(), r"net\.preprocess"),
        ([x], "a list of 1"),
        (None, "NoneType"),
    ]:
        with pytest.raises(anytime.AnytimeError, match=message):
            next(found.steps(wrong))


def test_dicts_of_tensors(tmp_path):
    class Both(nn.Module):
        def forward(self, x):
            return x["left"] @ torch.ones(4, 4) + x["right"]

    net = anytime.AnytimeNetwork([Both(), nn.Linear(4, 4)], [nn.Linear(4, 2), nn.Linear(4, 2)]).eval()
    x = {"left": torch.randn(3, 4), "right": torch.randn(3, 4)}
    found = exported(net, x, tmp_path)
    parity_law(net, found, [x, {"right": x["right"], "left": x["left"]}])
    assert anytime.predict(found, x).macs == anytime.costs(net, x).macs[-1] - anytime.costs(net, x).heads[0]
    for wrong in ({"left": x["left"]}, x["left"], {"left": x["left"], "right": x["right"][:1]}):
        with pytest.raises(anytime.AnytimeError, match=r"dict of|different numbers"):
            next(found.steps(wrong))


def test_what_cannot_be_exported(tmp_path):
    net = FAMILIES["resann"]()
    for call, message in [
        (lambda: anytime.export.onnx(net, None, tmp_path), "expected a tensor"),
        (lambda: anytime.export.onnx(net, images(0), tmp_path), "no samples"),
        (lambda: anytime.export.onnx(net, images(1), tmp_path, exits=[]), "at least one exit"),
        (lambda: anytime.export.onnx(nn.Linear(2, 2), images(1), tmp_path), "not an anytime network"),
        (lambda: anytime.save(exported(net, images(1), tmp_path / "a"), tmp_path / "b"), "copy its folder"),
    ]:
        with pytest.raises(anytime.AnytimeError, match=message):
            call()
    with pytest.raises(IndexError):
        anytime.export.onnx(net, images(1), tmp_path, exits=[6])
    policy = anytime.Policy("confidence", [0.9], [1.0, 1.0], [1, 2], [0.5, 0.5], 1.5)
    with pytest.raises(anytime.AnytimeError, match="policy is for 2 exits"):
        anytime.export.onnx(net, images(1), tmp_path, policy=policy)
    policy = anytime.Policy(lambda logits: logits[:, 0], [0.9], [1.0, 1.0], [1, 2], [0.5, 0.5], 1.5)
    with pytest.raises(anytime.AnytimeError, match="score is a function cannot be exported"):
        anytime.export.onnx(net, images(1), tmp_path, policy=policy)
    flat = anytime.AnytimeNetwork([nn.Identity()] * 2, [nn.Identity(), nn.Flatten()])
    with pytest.raises(anytime.AnytimeError, match=r"4 dimensions, another float32 of 2.*exits=\[0\]"):
        anytime.export.onnx(flat, images(1), tmp_path)
    assert not list(tmp_path.glob("*.*")), "nothing is written by an export that fails"


def test_an_exported_network_is_no_part_of_another(tmp_path):
    """What its graphs compute inside another network could not be counted."""
    found = exported(FAMILIES["patches"]().eval(), images(1), tmp_path)
    for call in (lambda: anytime.combine(found, "product"), lambda: anytime.EANN([found])):
        with pytest.raises(anytime.AnytimeError, match=r"anytime\.export\.onnx\("):
            call()
    assert distance(copy.deepcopy(found)(images(2))[-1], found(images(2))[-1]) == 0


def test_training_mode_is_kept(tmp_path):
    net = FAMILIES["resann"]().train()
    found = exported(net, images(1), tmp_path)
    assert net.training
    assert all(module.training for module in net.modules())
    parity_law(net, found, [images(3)])


def test_graphs_in_order_without_gaps(tmp_path):
    """A runner that knows nothing but ``anytime.json``: values by name, stage after stage."""
    import json

    import onnxruntime

    net, x = lively(FAMILIES["msdnet"]()), images(3)
    about = json.loads((anytime.export.onnx(net, x, tmp_path) / "anytime.json").read_text())
    values = dict(zip(about["input"], [x.numpy()], strict=True))
    with torch.no_grad():
        expected = net(x)
    for i, (stage, head) in enumerate(zip(about["stages"], about["heads"], strict=True)):
        for graph in (stage, head):
            session = onnxruntime.InferenceSession(tmp_path / graph["file"])
            made = session.run(graph["outputs"], {name: values[name] for name in graph["inputs"]})
            values |= dict(zip(graph["outputs"], made, strict=True))
        assert distance(torch.from_numpy(values["logits"]), expected[i]) < 1e-4
        values = {name: values[name] for name in about["states"][i]}
    assert about["exits"] == list(range(1, net.exits + 1))


def test_states_are_joined_where_what_all_samples_share_is_equal():
    def state(samples, table):
        values = {"features": np.full((samples, 2), samples), "table": np.asarray(table)}
        return ExportedState(values, {"features": Rows(0), "table": None})

    joined = state(1, [1, 2]).join([state(2, [1, 2]), state(3, [1, 2])])
    assert joined.values["features"].tolist() == [[1, 1], [2, 2], [2, 2], [3, 3], [3, 3], [3, 3]]
    assert joined.values["table"].tolist() == [1, 2]
    for others in ([state(1, [1, 3])], [state(2, [1, 2]), state(1, [1, 3])], [state(1, [1, 3]), state(2, [1, 2])]):
        with pytest.raises(anytime.AnytimeError, match="states with different values"):
            state(1, [1, 2]).join(others)
