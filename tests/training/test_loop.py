import json

import pytest
import torch
from short_runs import linear, same, small, stopped, train, without_time

import anytime
from anytime.training import loop


def test_a_seed_makes_a_run_repeatable_and_leaves_the_callers_generator(data):
    first, second, other = small(), small(), small()
    state = torch.get_rng_state()
    one = train(first, data, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    two = train(second, data, seed=3)
    assert same(first, second)
    assert without_time(one.history) == without_time(two.history)
    train(other, data, seed=4)
    assert not same(first, other)


SCHEMES = ["const", "half-end", "geometric-mean", "log-barrier", "opt-2", "annealed", "first-order"]


@pytest.mark.parametrize("scheme", ["const", "first-order"])
@pytest.mark.parametrize("loader", [False, True])
def test_a_network_with_dropout_is_trained_alike_again_whatever_was_drawn_before(scheme, loader, data):
    batches = list(data.batches(data.train, batch_size=25)) if loader else data
    nets = [linear(dropout=0.5) for _ in range(3)]
    for net, drawn, seed in zip(nets, (0, 1, 0), (3, 3, 4), strict=True):
        torch.manual_seed(drawn)
        train(net, batches, scheme, seed=seed)
    one, again, other = nets
    assert same(one, again)
    assert not same(one, other)


@pytest.mark.parametrize("scheme", ["adaloss", *SCHEMES])
def test_a_network_with_dropout_resumes_at_any_step_whatever_was_drawn_before(scheme, data, tmp_path):
    few = {"batch_size": 50, "lr": 0.01}  # four steps in two epochs
    whole = linear(dropout=0.5)
    train(whole, data, scheme, **few)
    for after in (1, 2, 3):
        parts, again = linear(dropout=0.5), linear(dropout=0.5)
        stopped(parts, data, tmp_path / f"{after}", scheme, after=after, **few)
        torch.manual_seed(after)
        train(again, data, scheme, output=tmp_path / f"{after}", resume=True, **few)
        assert same(whole, again)
        assert not same(whole, parts)


def test_training_learns():
    net = anytime.create_model("resann-1-8", in_channels=1)
    result = train(net, anytime.load_data("digits"), epochs=6)
    assert result.curve.errors[-1] < 0.15
    assert result.history[-1]["train"]["losses"][-1] < result.history[0]["train"]["losses"][-1] / 2


def test_the_log_has_a_line_an_epoch(data, tmp_path):
    net = small()
    result = train(net, data, output=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert lines == result.history
    for line in lines:
        assert all(len(line[split][kind]) == 3 for split in ("train", "validation") for kind in ("losses", "errors"))
        assert len(line["weights"]) == 3
    assert list((tmp_path / "run/tensorboard").iterdir())
    assert json.loads((tmp_path / "run/evaluation.json").read_text())["errors"] == result.curve.errors
    assert same(anytime.load(tmp_path / "run"), net)


def test_the_paper_trains_each_image_once_an_epoch(data, monkeypatch):
    seen = []
    original = loop.Training.backward

    def spy(self, part, *options):
        seen.append(part.labels.clone())
        return original(self, part, *options)

    monkeypatch.setattr(loop.Training, "backward", spy)
    train(small(), data, epochs=1, batch_size=32)
    assert [len(labels) for labels in seen] == [25, 25, 25, 25]
    assert torch.equal(torch.cat(seen).sort().values, data.train.labels.sort().values)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_trains_and_resumes(scheme, data, tmp_path):
    whole, parts = small(), small()
    train(whole, data, scheme, lr=0.01)
    stopped(parts, data, tmp_path / "run", scheme, after=3)
    again = small()
    train(again, data, scheme, lr=0.01, output=tmp_path / "run", resume=True)
    assert same(whole, again)


def test_adamw_resumes_too(data, tmp_path):
    whole, parts, again = small(), small(), small()
    adam = {"optimizer": "adamw", "lr": 0.001}
    train(whole, data, "const", **adam)
    stopped(parts, data, tmp_path / "run", "const", after=3, **adam)
    train(again, data, "const", output=tmp_path / "run", resume=True, **adam)
    assert same(whole, again)
    with pytest.raises(anytime.AnytimeError, match="must be one of sgd, adamw"):
        train(small(), data, optimizer="magic")


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_run_resumes_within_an_epoch_whatever_the_schedule(schedule, data, tmp_path):
    whole, parts, again = small(), small(), small()
    rates = {"schedule": schedule, "warmup": 0.3, "lr": 0.01}
    train(whole, data, **rates)
    stopped(parts, data, tmp_path / "run", after=3, **rates)
    train(again, data, output=tmp_path / "run", resume=True, **rates)
    assert same(whole, again)


def test_every_step_has_the_learning_rate_of_its_middle(data, monkeypatch):
    seen = []

    def spy(training, *options, backward=loop.Training.backward):
        seen.append(training.optimizer.param_groups[0]["lr"])
        return backward(training, *options)

    monkeypatch.setattr(loop.Training, "backward", spy)
    history = train(small(), data, epochs=2, batch_size=25, lr=1.0, schedule="linear", warmup=0.25).history
    assert seen == pytest.approx([0.25, 0.75, *(1 - (i + 0.5) / 6 for i in range(6))])
    assert [record["lr"] for record in history] == [seen[3], seen[7]]  # the log has that of the epoch's last step
    seen.clear()
    train(small(), data, epochs=3, batch_size=50, lr=0.1)  # halfway is within the second epoch: it drops after it
    assert seen == [0.1, 0.1, 0.1, 0.1, 0.1 * 0.1, 0.1 * 0.1]


def test_other_exits_are_untouched_by_opt(data):
    before, net = small(), small()
    result = train(net, data, "opt-2", weight_decay=0.5)
    untouched = [*net.stages[2].parameters(), *net.heads[0].parameters(), *net.heads[2].parameters()]
    originals = [*before.stages[2].parameters(), *before.heads[0].parameters(), *before.heads[2].parameters()]
    assert all(torch.equal(a, b) for a, b in zip(untouched, originals, strict=True))
    assert not torch.equal(net.heads[1].fc.weight, before.heads[1].fc.weight)
    assert result.history[0]["train"]["losses"][0] is None
    assert result.curve.errors[0] is None
    assert result.curve.errors[1] is not None


def test_the_order_of_the_exits_in_only_does_not_matter(data):
    def scheme(losses):
        return losses @ torch.tensor([1.0, 5.0, 3.0])

    nets, results = [], []
    for scheme.only in ([0, 2], [2, 0], [-1, 0]):
        nets.append(small())
        results.append(without_time(train(nets[-1], data, scheme).history))
    assert results[0] == results[1] == results[2]
    assert same(nets[0], nets[1])
    assert same(nets[0], nets[2])


def test_parts_of_a_batch_add_up(data):
    """Without batch norm, a batch in three parts gives the gradients of the whole."""
    whole, parts = linear(), linear()
    one = train(whole, data, "const", batch_size=25)
    two = train(parts, data, "const", batch_size=25, accumulate=3)
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert one.history[-1]["train"]["losses"] == pytest.approx(two.history[-1]["train"]["losses"], abs=1e-5)


class WrongWhenAsked(torch.nn.Linear):
    """A head whose answers are no numbers, but not in training."""

    def forward(self, x):
        return super().forward(x) / (1 if self.training else 0)


def test_a_validation_loss_that_is_not_finite_does_not_end_a_run(data, tmp_path):
    net = linear()
    net.heads[1] = WrongWhenAsked(16, 10)
    result = train(net, data, output=tmp_path / "run")
    log = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert log == result.history
    for losses in (log[-1]["validation"]["losses"], result.curve.losses):
        assert losses[0] > 0
        assert losses[1] is None


@pytest.mark.parametrize("scheme", [lambda losses: losses, lambda _: 1.0, lambda losses: losses.detach().sum()])
def test_a_scheme_that_returns_something_else_is_told_so(scheme, data):
    with pytest.raises(anytime.AnytimeError, match="must return a scalar tensor made from the losses"):
        train(linear(), data, scheme)


def test_impossible_trainings_are_refused(data):
    with pytest.raises(anytime.AnytimeError, match="batch size of at least 200"):
        train(small(), data, accumulate=200)
    with pytest.raises(anytime.AnytimeError, match="float32, bfloat16 or float16"):
        train(small(), data, precision="int8")
