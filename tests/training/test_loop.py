import json
import math
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

import anytime
from anytime.files import read_tensors
from anytime.training import loop
from anytime.training.recipe import RECIPES


@pytest.fixture(scope="module")
def data():
    return anytime.load_data("digits").subset(100)


def small(**options):
    torch.manual_seed(1)
    return anytime.create_model("resann-1-4", in_channels=1, **options)


def train(net, data, scheme="adaloss", **options):
    return anytime.fit(net, data, scheme, **{"recipe": RECIPES["digits"], "epochs": 2, "show": False, **options})


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def without_time(history):
    return [{k: v for k, v in record.items() if "second" not in k} for record in history]


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

    def spy(self, batch, share):
        seen.append(batch.labels.clone())
        return original(self, batch, share)

    monkeypatch.setattr(loop.Training, "backward", spy)
    train(small(), data, epochs=1, batch_size=32)
    assert [len(labels) for labels in seen] == [25, 25, 25, 25]
    assert torch.equal(torch.cat(seen).sort().values, data.train.labels.sort().values)


@pytest.mark.parametrize("scheme", ["const", "half-end", "geometric-mean", "log-barrier", "opt-2"])
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
    with pytest.raises(anytime.AnytimeError, match="expected one of sgd, adamw"):
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

    def spy(training, batch, share, backward=loop.Training.backward):
        seen.append(training.optimizer.param_groups[0]["lr"])
        return backward(training, batch, share)

    monkeypatch.setattr(loop.Training, "backward", spy)
    train(small(), data, epochs=2, batch_size=25, lr=1.0, schedule="linear", warmup=0.25)
    assert seen == pytest.approx([0.25, 0.75, *(1 - (i + 0.5) / 6 for i in range(6))])
    seen.clear()
    train(small(), data, epochs=3, batch_size=50, lr=0.1)  # halfway is within the second epoch: it drops after it
    assert seen == [0.1, 0.1, 0.1, 0.1, 0.1 * 0.1, 0.1 * 0.1]


def stopped(net, data, folder, scheme="adaloss", after=3, **options):
    """A run that a polite kill ends after some steps."""
    calls = []

    class Impatient(type(anytime.create_scheme(scheme, net.exits))):
        def forward(self, losses):
            calls.append(1)
            if len(calls) == after:
                signal.raise_signal(signal.SIGTERM)
            return super().forward(losses)

    impatient = anytime.create_scheme(scheme, net.exits)
    name = type(impatient).__name__
    Impatient.__name__ = name
    impatient.__class__ = Impatient
    with pytest.raises(KeyboardInterrupt):
        train(net, data, impatient, output=folder, **{"lr": 0.01, **options})
    assert len(calls) == after


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


class Fails(nn.Module):
    """A head whose logits are not numbers from some call on."""

    def __init__(self, head, after):
        super().__init__()
        self.head, self.left = head, after

    def forward(self, x):
        self.left -= self.training
        return self.head(x) * (math.nan if self.left < 0 else 1)


def test_a_loss_that_is_no_number_stops_before_the_update(data, tmp_path):
    net = small()
    net.heads[1] = Fails(net.heads[1], after=5)
    scheme = anytime.AdaLoss(3)
    seen = {}

    def remember(*_):
        seen.update({k: v.clone() for k, v in [*net.state_dict().items(), *scheme.state_dict().items()]})

    net.register_forward_pre_hook(remember)
    with pytest.raises(anytime.NonFiniteLossError, match=r"exit 2 of 3 \(index 1\) is nan at step 6 \(epoch 2"):
        train(net, data, scheme, batch_size=30, output=tmp_path / "run", checkpoint_seconds=0)
    for name, value in [*net.state_dict().items(), *scheme.state_dict().items()]:
        assert torch.equal(value, seen[name]), name
    assert read_tensors(tmp_path / "run/checkpoint.safetensors")[1]["position"] == 1


def test_an_objective_that_is_no_number_stops_too(data):
    net = small()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(anytime.NonFiniteLossError, match="every loss is a number at step 1"):
        train(net, data, lambda losses: losses.sum() * math.nan)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_bad_part_of_a_batch_moves_nothing(data):
    net = small()
    net.heads[1] = Fails(net.heads[1], after=3)  # the second part of the second step
    scheme, seen = anytime.AdaLoss(3), []
    net.register_forward_pre_hook(lambda *_: seen.append({k: v.clone() for k, v in scheme.state_dict().items()}))
    with pytest.raises(anytime.NonFiniteLossError, match="at step 2 "):
        train(net, data, scheme, batch_size=20, accumulate=2)
    assert all(torch.equal(value, seen[2][name]) for name, value in scheme.state_dict().items())


def test_where_looking_is_dear_nothing_changes_until_it_is_done(data, monkeypatch):
    """As on an accelerator: the losses are looked at now and then, and from the bad step on nothing has changed."""
    net = small()
    net.heads[1] = Fails(net.heads[1], after=5)
    scheme, seen = anytime.AdaLoss(3), []
    original = loop.Training.__post_init__

    def rarely(self):
        original(self)
        self.look_every = 50

    def remember(*_):
        state = [*net.named_parameters(), *net.named_buffers(), *scheme.state_dict().items()]
        seen.append({name: value.detach().clone() for name, value in state})

    monkeypatch.setattr(loop.Training, "__post_init__", rarely)
    net.register_forward_pre_hook(remember)
    with pytest.raises(anytime.NonFiniteLossError, match=r"exit 2 of 3 .* at step 6 "):
        train(net, data, scheme, batch_size=10)
    assert len(seen) == 10, "it went on to the end of the epoch"
    for name, value in [*net.named_parameters(), *net.named_buffers(), *scheme.state_dict().items()]:
        assert torch.equal(value, seen[5][name]), name


def test_parts_of_a_batch_add_up(data):
    """Without batch norm, a batch in three parts gives the gradients of the whole."""

    def build():
        torch.manual_seed(1)
        stages = [
            nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh()),
            nn.Sequential(nn.Linear(16, 16), nn.Tanh()),
        ]
        return anytime.AnytimeNetwork(stages, [nn.Linear(16, 10), nn.Linear(16, 10)])

    whole, parts = build(), build()
    one = train(whole, data, "const", batch_size=25)
    two = train(parts, data, "const", batch_size=25, accumulate=3)
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert one.history[-1]["train"]["losses"] == pytest.approx(two.history[-1]["train"]["losses"], abs=1e-5)


def test_impossible_trainings_are_refused(data):
    with pytest.raises(anytime.AnytimeError, match="batch size of at least 200"):
        train(small(), data, accumulate=200)
    with pytest.raises(anytime.AnytimeError, match="float32, bfloat16 or float16"):
        train(small(), data, precision="int8")


def test_a_run_folder_is_not_mixed_up(data, tmp_path):
    train(small(), data, output=tmp_path / "run", epochs=1)
    with pytest.raises(anytime.AnytimeError, match="holds a run already: add --resume"):
        train(small(), data, output=tmp_path / "run", epochs=1)
    with pytest.raises(anytime.AnytimeError, match="was started with seed 0, not 1"):
        train(small(), data, output=tmp_path / "run", epochs=1, seed=1, resume=True)
    with pytest.raises(anytime.AnytimeError, match="was started with scheme AdaLoss"):
        train(small(), data, "const", output=tmp_path / "run", epochs=1, resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.tex").write_text("precious")
    with pytest.raises(anytime.AnytimeError, match="is not empty and holds no run"):
        train(small(), data, output=tmp_path / "other", epochs=1, resume=True)
    assert (tmp_path / "other/thesis.tex").read_text() == "precious"
    again = small()
    train(again, data, output=tmp_path / "run", epochs=1, resume=True)
    assert same(again, anytime.load(tmp_path / "run"))


def command(folder, *more):
    options = [
        "--model",
        "resann-1-4",
        "--data",
        "digits",
        "--subset",
        "300",
        "--epochs",
        "3",
        "--seed",
        "7",
        "--checkpoint-seconds",
        "0",
    ]
    return [sys.executable, "-m", "anytime", "train", *options, "--output", str(folder), *more]


def killed_runs(kills, tmp_path, environment):
    """Kill a training run without warning at random moments; each time it must go on, to the same end."""
    subprocess.run(command(tmp_path / "whole"), env=environment, check=True, capture_output=True)
    folder, draw, hit = tmp_path / "killed", random.Random(0), 0
    while hit < kills:
        process = subprocess.Popen(
            command(folder, "--resume"), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        checkpoint = folder / "checkpoint.safetensors"
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else None
        while process.poll() is None and (not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before):
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.03))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            hit += 1
        complaint = process.communicate()[1]
        assert process.returncode in (0, -signal.SIGKILL), complaint
        if process.returncode == 0:  # it ended before we struck: begin another
            assert equal_runs(tmp_path / "whole", folder)
            folder = tmp_path / f"killed-{hit}"
    subprocess.run(command(folder, "--resume"), env=environment, check=True, capture_output=True)
    assert equal_runs(tmp_path / "whole", folder)


def equal_runs(one, other):
    same_log = [without_time(map(json.loads, (run / "log.jsonl").read_text().splitlines())) for run in (one, other)]
    return (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes() and (
        same_log[0] == same_log[1]
    )


def test_killed_runs_end_as_undisturbed_ones(tmp_path, environment):
    killed_runs(2, tmp_path, environment)


@pytest.mark.slow
def test_fifty_killed_runs_end_as_undisturbed_ones(tmp_path, environment):
    killed_runs(50, tmp_path, environment)


def test_two_processes_do_not_share_a_folder(tmp_path, environment):
    first = subprocess.Popen(
        [*command(tmp_path / "run"), "--epochs", "1000"], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        while not (tmp_path / "run/checkpoint.safetensors").exists():
            assert first.poll() is None
            time.sleep(0.01)
        second = subprocess.run(
            [*command(tmp_path / "run", "--resume"), "--epochs", "1000"],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert second.returncode == 2
        assert "in use by another training process" in second.stderr
    finally:
        first.kill()
        first.wait()
