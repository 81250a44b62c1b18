import json

import pytest
import torch
from safetensors.torch import save_file
from short_runs import linear, same, small, stopped, train
from torch import nn
from torch.overrides import TorchFunctionMode

import anytime
from anytime.files import read_tensors, write_tensors
from anytime.training.averaging import WeightAverage
from anytime.training.epochs import LoaderEpochs
from anytime.training.finite import FiniteGuard
from anytime.training.state import RunState


@pytest.fixture(scope="module")
def begun(data, tmp_path_factory):
    """A run that was stopped in the middle of an epoch."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    stopped(small(), data, folder, after=3)
    return folder


@pytest.fixture
def copy(begun, tmp_path):
    for path in begun.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def checkpoint(folder):
    return folder / "checkpoint.safetensors"


def refused(folder, data, says):
    net = small()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(anytime.AnytimeError, match=says) as error:
        train(net, data, lr=0.01, output=folder, resume=True)
    assert "\n" not in str(error.value)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items()), "nothing was loaded"


@pytest.mark.parametrize(
    "about",
    [
        {"position": 99}, {"position": -1}, {"position": "1"}, {"position": 1.0}, {"position": None},
        {"epoch": 3}, {"epoch": -1}, {"epoch": [1]}, {"epoch": 2},
        {"seconds": "long"}, {"seconds": -1}, {"seconds": None}, {"seconds": float("nan")},
        {"scaler": None}, {"scaler": {"scale": 2.0}}, {"scaler": []},
        {"moments": 1}, {"run": "0123456789abcdef"}, {"run": None},
    ],
)  # fmt: skip
def test_metadata_that_does_not_fit_is_refused(about, copy, data):
    tensors, right = read_tensors(checkpoint(copy))
    write_tensors(checkpoint(copy), tensors, right | about)
    refused(copy, data, "the checkpoint is damaged or of another run")


@pytest.mark.parametrize("missing", ["run", "epoch", "position", "seconds", "scaler", "moments"])
def test_missing_metadata_is_refused(missing, copy, data):
    tensors, right = read_tensors(checkpoint(copy))
    del right[missing]
    write_tensors(checkpoint(copy), tensors, right)
    refused(copy, data, "the checkpoint is damaged or of another run")


@pytest.mark.parametrize("metadata", ["[]", "3", "null", '"x"'])
def test_metadata_that_is_no_object_is_refused(metadata, copy, data):
    save_file(read_tensors(checkpoint(copy))[0], checkpoint(copy), {"anytime": metadata})
    refused(copy, data, "checkpoint")


def test_no_tensor_may_be_missing_or_changed_in_kind(copy, data):
    tensors, about = read_tensors(checkpoint(copy))
    for name in tensors:
        group = [other for other in tensors if other.partition("/")[0] == name.partition("/")[0]]
        if name not in group[:2] + group[-1:]:  # the first two and the last of each group stand for all
            continue
        value = tensors[name]
        wrong_type = value.half() if value.is_floating_point() else value.int()
        for other in (None, wrong_type, torch.cat([value.reshape(-1), value.reshape(-1)])):
            changed = {**tensors, name: other} if other is not None else {k: v for k, v in tensors.items() if k != name}
            write_tensors(checkpoint(copy), changed, about)
            refused(copy, data, "the checkpoint is damaged or of another run")
    for extra in ("net/extra", "optimizer/momentum_buffer:net.extra", "optimizer/extra:net.heads.0.fc.weight"):
        write_tensors(checkpoint(copy), {**tensors, extra: torch.zeros(3)}, {**about, "moments": about["moments"] + 1})
        refused(copy, data, "the checkpoint is damaged or of another run")


def test_the_checkpoint_of_another_run_is_refused(copy, data, tmp_path_factory):
    """Same model, same shapes, other seed: its weights are not this run's."""
    other = tmp_path_factory.mktemp("other") / "run"
    stopped(small(), data, other, after=3, seed=5)
    checkpoint(copy).write_bytes(checkpoint(other).read_bytes())
    refused(copy, data, "of another run")


class Shared(anytime.AnytimeNetwork):
    """Two exits with one head, and two stages with one layer."""

    def __init__(self):
        torch.manual_seed(1)
        layer, head = nn.Sequential(nn.Linear(64, 64), nn.Tanh()), nn.Linear(64, 10)
        super().__init__([nn.Sequential(nn.Flatten(), layer), layer], [head, head])


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_network_whose_exits_share_parameters_is_saved_and_resumed(optimizer, data, tmp_path):
    whole, again = Shared(), Shared()
    options = {"optimizer": optimizer, "lr": 0.01, "checkpoint_seconds": 0}
    train(whole, data, "const", **options)
    stopped(Shared(), data, tmp_path / "run", "const", after=3, **options)
    train(again, data, "const", output=tmp_path / "run", resume=True, **options)
    assert same(whole, again)
    assert same(anytime.load(tmp_path / "run", net=Shared()), whole)


@pytest.mark.filterwarnings("ignore:.*meta parameter")
def test_the_optimizers_state_goes_where_the_optimizer_wants_it():
    """AdamW counts its steps on the device of the parameters where it runs fused or captured, as on CUDA."""

    def state(device):
        net, scaler = linear().to(device), torch.amp.GradScaler("cpu", enabled=False)
        optimizer = torch.optim.AdamW(net.parameters(), capturable=device != "cpu")
        parts = (optimizer, scaler, WeightAverage(net, 0), LoaderEpochs(net, [], 0, 1, torch.device(device)))
        return RunState(net, lambda losses: losses.sum(), *parts, run="", epochs=1, exits=2)

    trained, resumed = state("cpu"), state("meta")
    for parameter in trained.named.values():
        parameter.grad = torch.ones_like(parameter)
    trained.optimizer.step()
    resumed.restore(*trained.capture())
    for kept in resumed.optimizer.state.values():
        assert {value.device.type for value in kept.values()} == {"meta"}
        assert kept.keys() == {"step", "exp_avg", "exp_avg_sq"}


def test_the_account_of_an_epoch_needs_no_double_precision_on_the_device(data, monkeypatch):
    """MPS has none: the losses of the steps are added up on the CPU, and come to the same bits as one by one."""
    history = [train(small(), data).history]
    original = FiniteGuard.__init__

    def rarely(self, *arguments):
        original(self, *arguments)
        self.look_every = 50

    monkeypatch.setattr(FiniteGuard, "__init__", rarely)
    history.append(train(small(), data).history)
    one, other = (json.dumps([record["train"] for record in records]) for records in history)
    assert one == other


def test_evaluation_makes_no_doubles_on_the_device(data):
    class NoDoubles(TorchFunctionMode):
        """Every tensor made with a device but the CPU's name is of a type that MPS has."""

        def __torch_function__(self, function, _types, arguments=(), options=None):
            options = options or {}
            assert options.get("device") is None or options.get("dtype") is not torch.float64, function
            return function(*arguments, **options)

    with NoDoubles():
        anytime.evaluate(small(), data)
        train(small(), data, "const", epochs=1)
