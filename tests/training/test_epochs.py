"""Any loader trains as a ``Data`` does, and resumes as far as it can."""

import signal

import pytest
import torch
from short_runs import linear, same, small, train, without_time
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import anytime
from anytime.data.augmentation import mix
from anytime.training.epochs import LoaderEpochs, pack_state, unpack_state

PLAIN = {"pad": 0, "flip": False, "blur": 0.0}


class Order:
    """A batch sampler with the order and the equal steps that a ``Data`` has."""

    def __init__(self, images, steps, seed):
        self.images, self.steps, self.seed, self.epoch = images, steps, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.steps

    def __iter__(self):
        draw = torch.Generator().manual_seed(mix(self.seed, self.epoch, -1))
        order = torch.randperm(self.images, generator=draw)
        return iter(part.tolist() for part in order.tensor_split(self.steps))


def tensors(data, images):
    return TensorDataset(data.normalize(images.pixels).contiguous(), images.labels)


@pytest.mark.parametrize("scheme", ["adaloss", "const", "opt-2"])
@pytest.mark.parametrize("color", [False, True])
def test_a_loader_of_the_same_order_trains_as_data_does(scheme, color, data):
    """Bit for bit: the weights, the log and the scheme's state, without augmentation."""
    if color:
        pixels = torch.randint(256, (100, 3, 8, 8), dtype=torch.uint8)
        images = anytime.Images(pixels, data.train.labels)
        data = anytime.Data(images, images, images, classes=data.classes)
    nets = []
    for _ in range(2):
        torch.manual_seed(1)
        nets.append(anytime.create_model("resann-1-4", in_channels=3 if color else 1))
    loader = DataLoader(tensors(data, data.train), batch_sampler=Order(100, 4, seed=3))
    held_out = DataLoader(tensors(data, data.validation), batch_size=500)
    one = train(nets[0], data, scheme, seed=3, batch_size=32, lr=0.05, **PLAIN)
    two = train(nets[1], loader, scheme, seed=3, lr=0.05, validation=held_out)
    assert same(*nets)
    assert without_time(one.history) == without_time(two.history)
    test = DataLoader(tensors(data, data.test), batch_size=500)
    only = [1] if scheme == "opt-2" else None
    assert anytime.evaluate(nets[1], test, only=only).record() == one.curve.record()


class Stops(anytime.AdaLoss):
    """AdaLoss that ends a run by SIGTERM in some call."""

    def __init__(self, exits, after):
        super().__init__(exits)
        self.left = after

    def _get_name(self):
        return "AdaLoss"

    def forward(self, losses):
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGTERM)
        return super().forward(losses)


def shuffled(data, kind=DataLoader):
    torch.manual_seed(torch.initial_seed() + 1)  # another order each time, as in a new process
    return kind(tensors(data, data.train), batch_size=32, shuffle=True)


@pytest.mark.parametrize("after", [3, 4, 6])
def test_a_run_with_a_shuffled_loader_begins_the_interrupted_epoch_anew(after, data, tmp_path):
    whole, part, again = linear(), linear(), linear()
    train(whole, shuffled(data), seed=5, lr=0.05)
    with pytest.raises(KeyboardInterrupt):
        train(part, shuffled(data), Stops(2, after), seed=5, lr=0.05, output=tmp_path / "run")
    seen = []
    options = {"output": tmp_path / "run", "resume": True, "on_step": seen.append}
    train(again, shuffled(data), anytime.AdaLoss(2), seed=5, lr=0.05, **options)
    assert same(whole, again)
    assert (seen[0]["epoch"], seen[0]["step"]) == (1 if after <= 4 else 2, 1)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("after", [3, 4, 6])
def test_a_stateful_loader_goes_on_within_the_epoch(after, data, tmp_path):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    whole, part, again = linear(), linear(), linear()
    state = torch.get_rng_state()
    train(whole, shuffled(data, stateful), seed=5, lr=0.05)
    torch.set_rng_state(state)
    with pytest.raises(KeyboardInterrupt):
        train(part, shuffled(data, stateful), Stops(2, after), seed=5, lr=0.05, output=tmp_path / "run")
    seen = []
    options = {"output": tmp_path / "run", "resume": True, "on_step": seen.append}
    train(again, shuffled(data, stateful), anytime.AdaLoss(2), seed=5, lr=0.05, **options)
    assert same(whole, again)
    assert len(seen) == 8 - after


def test_a_loaders_state_is_packed_without_pickle():
    state = {"a": [1, None, {"b": torch.arange(3)}], "c": (True, "x", 0.5)}
    held = {}
    back = unpack_state(pack_state(state, held), held)
    assert torch.equal(back["a"][2].pop("b"), torch.arange(3))
    assert back == {"a": [1, None, {}], "c": [True, "x", 0.5]}
    with pytest.raises(anytime.AnytimeError, match="state contains a set"):
        pack_state({"a": {1}}, {})


def test_streams_generators_and_empty_loaders():
    batches = [(torch.randn(8, 1, 8, 8), torch.randint(10, (8,))) for _ in range(3)]

    class Stream:
        def __iter__(self):
            return iter(batches)

    seen = []
    history = train(small(), Stream(), on_step=seen.append, schedule="linear", lr=1e-2).history
    assert [each["lr"] for each in seen] == [0.0075] * 3 + [0.0025] * 3  # without a length, one rate per epoch
    assert [each["lr"] for each in history] == [0.0075, 0.0025]
    same_steps = train(small(), batches, lr=1e-2).history
    assert without_time(same_steps)[0]["train"] == without_time(train(small(), Stream(), lr=1e-2).history)[0]["train"]
    for once in (iter(batches), (batch for batch in batches)):
        with pytest.raises(anytime.AnytimeError, match="only once, and there are 2 epochs: pass a DataLoader"):
            train(small(), once)
    exhausted = iter(batches)
    stream = type("Same", (), {"__iter__": lambda _: exhausted})()
    with pytest.raises(anytime.AnytimeError, match="no batches in epoch 2: pass what can be iterated"):
        train(small(), stream)
    with pytest.raises(anytime.AnytimeError, match="no batches in epoch 1"):
        train(small(), [])
    with pytest.raises(anytime.AnytimeError, match="flip= is for images"):
        train(small(), batches, flip=True)


@pytest.mark.parametrize("accumulate", [3, 5])
def test_batches_are_split_into_parts_and_their_rest_counts(accumulate, data):
    whole, parts = linear(), linear()
    loader = DataLoader(tensors(data, data.train), batch_size=32)  # the last has 4
    one = train(whole, loader, "const")
    two = train(parts, loader, "const", accumulate=accumulate)
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert one.history[-1]["train"]["losses"] == pytest.approx(two.history[-1]["train"]["losses"], abs=1e-5)


def test_the_losses_of_the_parts_have_the_batchs_as_their_mean(data):
    batch = next(iter(DataLoader(tensors(data, data.train), batch_size=4)))
    for accumulate, calls in ((1, 1), (3, 3), (5, 4)):
        seen = []
        scheme = lambda losses: (seen.append(losses.detach()), losses.sum())[1]  # noqa: B023, E731
        result = train(linear(), [batch], scheme, epochs=1, lr=0.0, accumulate=accumulate)
        assert len(seen) == calls
        assert torch.stack(seen).mean(0).tolist() == pytest.approx(result.history[0]["train"]["losses"], abs=1e-5)


def test_several_processes_make_the_same_number_of_parts(data, monkeypatch):
    loader = DataLoader(tensors(data, data.train), batch_size=4)
    monkeypatch.setattr("anytime.distributed.world_size", lambda: 2)
    monkeypatch.setattr("anytime.distributed.rank", lambda: 0)
    epochs = LoaderEpochs(linear(), loader, 0, 5, torch.device("cpu"))
    with pytest.raises(anytime.AnytimeError, match="cannot be split into 5 parts"):
        next(epochs.from_step(0, 0))


class Told(SequentialSampler):
    """A sampler that notes its epochs."""

    def __init__(self, samples):
        super().__init__(samples)
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


def test_a_sampler_is_told_the_epoch_wherever_it_is(data):
    samples = tensors(data, data.train)
    own, inner = Told(samples), Told(samples)
    train(linear(), DataLoader(samples, batch_size=50, sampler=own))
    train(linear(), DataLoader(samples, batch_sampler=BatchSampler(inner, 50, drop_last=False)))
    assert sorted(set(own.epochs)) == inner.epochs == [0, 1]


def test_validation_batches_that_run_out_are_kept(data):
    held_out = list(data.batches(data.validation))
    one, two = (train(linear(), held_out, validation=given) for given in (held_out, iter(held_out)))
    assert without_time(one.history) == without_time(two.history)
    assert one.curve == two.curve


def test_callbacks_see_every_step_and_epoch(data):
    steps, epochs = [], []
    result = train(small(), data, batch_size=50, on_step=steps.append, on_epoch=epochs.append)
    assert [(s["epoch"], s["step"]) for s in steps] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert all(s["losses"].shape == (3,) for s in steps)
    assert epochs == result.history


def test_clipping_bounds_the_change_of_a_step(data):
    """With plain SGD and no decay, a step changes the weights by at most lr × clip."""
    net, before = linear(), linear()
    one = [next(data.batches(data.train, 50))]
    train(net, one, "const", epochs=1, lr=0.1, momentum=0.0, weight_decay=0.0, clip=0.01)
    moved = nn.utils.get_total_norm([a - b for a, b in zip(net.parameters(), before.parameters(), strict=True)])
    assert moved.item() == pytest.approx(0.1 * 0.01, rel=1e-3)


def test_the_average_of_the_weights_is_what_is_left_and_resumes(data, tmp_path):
    plain, averaged, again = small(), small(), small()
    train(plain, data, lr=0.05)
    result = train(averaged, data, lr=0.05, ema=0.9)
    assert not same(plain, averaged)
    assert result.curve.errors == anytime.evaluate(averaged, data).errors
    assert result.history[-1]["train"] == train(small(), data, lr=0.05).history[-1]["train"]  # the training is the same
    with pytest.raises(KeyboardInterrupt):
        train(small(), data, Stops(3, 3), lr=0.05, ema=0.9, output=tmp_path / "run")
    train(again, data, anytime.AdaLoss(3), lr=0.05, ema=0.9, output=tmp_path / "run", resume=True)
    assert same(averaged, again)
    assert same(anytime.load(tmp_path / "run"), averaged)
    once_more = small()
    train(once_more, data, anytime.AdaLoss(3), lr=0.05, ema=0.9, output=tmp_path / "run", resume=True)
    assert same(averaged, once_more)


def test_label_smoothing_is_in_the_training_loss_alone(data):
    plain, smooth = small(), small()
    one, two = train(plain, data, lr=0.0), train(smooth, data, lr=0.0, label_smoothing=0.3)
    assert one.history[0]["train"]["losses"] != two.history[0]["train"]["losses"]
    assert one.history[0]["validation"] == two.history[0]["validation"]
    with pytest.raises(anytime.AnytimeError, match="the loss has no such option"):
        train(small(), data, loss=anytime.losses.squared, label_smoothing=0.1)
