import json
import random
import re
import signal
import sys
import time

import processes
import pytest
import torch
from short_runs import linear, same, small, stopped, train, without_time

import anytime
from anytime import cli
from anytime.files import read_tensors
from anytime.training.run_folder import RunFolder


def weighted(losses):
    """A scheme of the user's own."""
    return losses.mean()


class Weighted:
    """One with a state."""

    def __call__(self, losses):
        return losses.mean()


@pytest.mark.parametrize(("scheme", "name"), [(weighted, "weighted"), (Weighted(), "Weighted")])
def test_run_json_names_the_scheme_of_a_user(scheme, name, data, tmp_path):
    train(linear(), data, scheme, epochs=1, output=tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["scheme"] == name


def test_commands_say_what_to_do_with_a_network_that_only_the_user_can_build(data, tmp_path, monkeypatch, capsys):
    train(linear(), data, weighted, epochs=1, output=tmp_path / "run")
    monkeypatch.setattr(sys, "argv", ["anytime", "evaluate", str(tmp_path / "run")])
    with pytest.raises(SystemExit):
        cli.main()
    said = capsys.readouterr().err
    call = re.search(r"net = (anytime.load\(.*?, net=net\)), then (anytime.evaluate\(net, data\))", said)
    net = eval(call[1], {"anytime": anytime, "net": linear()})
    assert eval(call[2], {"anytime": anytime, "net": net, "data": anytime.load_data("digits")}).images == 500


def test_a_run_folder_is_not_mixed_up(data, tmp_path):
    train(small(), data, output=tmp_path / "run", epochs=1)
    with pytest.raises(anytime.AnytimeError, match="holds a run already: pass resume=True"):
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
    return ["-m", "anytime", "train", *options, "--output", str(folder), *more]


def killed_runs(kills, tmp_path, environment):
    """Kill a training run without warning at random moments; each time it must go on, to the same end."""
    processes.run(command(tmp_path / "whole"), env=environment, check=True)
    folder, draw, hit = tmp_path / "killed", random.Random(0), 0
    while hit < kills:
        process = processes.Child(command(folder, "--resume"), env=environment)
        checkpoint = folder / "checkpoint.safetensors"
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else None
        while process.poll() is None and (not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before):
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.03))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            hit += 1
        assert process.wait() in (0, -signal.SIGKILL), process.stderr
        if process.poll() == 0:  # it ended before we struck: begin another
            assert equal_runs(tmp_path / "whole", folder)
            folder = tmp_path / f"killed-{hit}"
    processes.run(command(folder, "--resume"), env=environment, check=True)
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
    first = processes.Child(command(tmp_path / "run", "--epochs", "1000"), env=environment)
    try:
        while not (tmp_path / "run/checkpoint.safetensors").exists():
            assert first.poll() is None
            time.sleep(0.01)
        second = processes.run(command(tmp_path / "run", "--resume", "--epochs", "1000"), env=environment)
        assert second.returncode == 2
        assert "in use by another training process" in second.stderr
    finally:
        first.kill()
        first.wait()


def test_resuming_a_complete_run_changes_nothing(data, tmp_path):
    net = small()
    train(net, data, output=tmp_path / "run", epochs=1)
    batches = list(data.batches(data.validation))
    policy = anytime.calibrate(net.eval(), batches, 0.9, "fraction")
    policy.save(tmp_path / "run")
    anytime.profile(net, batches[0][0][:1], repeats=2).save(tmp_path / "run")
    before = contents(tmp_path / "run")
    assert {"policy.json", "profile.json"} <= {path.name for path in before}
    again = small()
    result = train(again, data, output=tmp_path / "run", epochs=1, resume=True)
    assert contents(tmp_path / "run") == before
    assert len(result.history) == 1
    assert same(again, net)


def contents(folder):
    """Every file with its bytes and the time of its last change."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_a_run_that_was_ended_before_its_model_was_written_gets_one(data, tmp_path):
    train(small(), data, output=tmp_path / "run", epochs=1)
    model = (tmp_path / "run/model.safetensors").read_bytes()
    for name in ("config.json", "model.safetensors", "evaluation.json"):
        (tmp_path / "run" / name).unlink()
    train(small(), data, output=tmp_path / "run", epochs=1, resume=True)
    assert (tmp_path / "run/model.safetensors").read_bytes() == model


def test_a_model_is_not_lost_when_its_evaluation_fails(data, tmp_path):
    def fails(outputs, targets):
        if torch.is_inference_mode_enabled():
            raise KeyError
        return anytime.metrics.error(outputs, targets)

    data = anytime.Data(data.train, None, data.test, classes=data.classes)
    net, again = small(), small()
    with pytest.raises(KeyError):
        train(net, data, output=tmp_path / "run", metric=fails)
    assert same(net, anytime.load(tmp_path / "run"))
    assert not (tmp_path / "run/evaluation.json").exists()
    result = train(again, data, output=tmp_path / "run", resume=True)
    assert same(net, again)
    assert json.loads((tmp_path / "run/evaluation.json").read_text())["errors"] == result.curve.errors


def test_what_a_run_says_about_itself_is_not_replaced(data, tmp_path):
    for name in ("data", "seed", "started"):
        with pytest.raises(anytime.AnytimeError, match=f"run.json has {name} of its own"):
            train(small(), data, output=tmp_path / "run", about={name: "mine", "note": 1})
    assert not (tmp_path / "run").exists()


def test_what_was_saved_about_a_model_is_no_fact_of_its_run(data, tmp_path):
    stopped(small(), data, tmp_path / "run", after=3)
    anytime.save(small(), tmp_path / "model", note="mine")
    train(anytime.load(tmp_path / "model"), data, output=tmp_path / "run", lr=0.01, resume=True)


@pytest.mark.parametrize("end", ["stopped", "complete"])
def test_a_run_without_its_checkpoint_is_not_begun_again(end, data, tmp_path):
    if end == "complete":
        train(small(), data, output=tmp_path / "run", lr=0.01)
    else:
        stopped(small(), data, tmp_path / "run", after=6)  # in the second epoch
    (tmp_path / "run/checkpoint.safetensors").unlink()
    before = contents(tmp_path / "run")
    with pytest.raises(anytime.AnytimeError, match=r"checkpoint\.safetensors is missing.* another output folder"):
        train(small(), data, output=tmp_path / "run", lr=0.01, resume=True)
    assert contents(tmp_path / "run") == before


def test_a_run_that_has_only_just_begun_is_begun_again(data, tmp_path):
    """Killed between ``run.json`` and the first checkpoint: nothing is lost."""
    whole, again = small(), small()
    train(whole, data, output=tmp_path / "whole")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_bytes((tmp_path / "whole/run.json").read_bytes())
    train(again, data, output=tmp_path / "run", resume=True)
    assert same(whole, again)


def test_a_run_may_be_moved_between_two_sittings(data, tmp_path):
    whole, again = small(), small()
    train(whole, data, lr=0.01)
    stopped(small(), data, tmp_path / "here", after=3)
    (tmp_path / "here").rename(tmp_path / "there")
    train(again, data, lr=0.01, output=tmp_path / "there", resume=True)
    assert same(whole, again)


@pytest.mark.parametrize("seconds", [0, 1000])  # noticed by the checkpoint, and by the log
def test_a_folder_that_is_moved_during_the_training_is_one_clear_error(seconds, data, tmp_path):
    scheme = anytime.AdaLoss(3)
    calls = []

    def move(*_):
        calls.append(1)
        if len(calls) == 3:
            (tmp_path / "here").rename(tmp_path / "there")

    scheme.register_forward_hook(move)
    with pytest.raises(anytime.AnytimeError, match="was moved or deleted during the training"):
        train(small(), data, scheme, output=tmp_path / "here", checkpoint_seconds=seconds)
    assert not (tmp_path / "here").exists(), "no half of a run is left at the old place"
    whole, again = small(), small()
    train(whole, data)
    train(again, data, output=tmp_path / "there", resume=True)
    assert same(whole, again)


@pytest.mark.parametrize(
    "line", [b"\xff\xfe\n", b"not JSON\n", b"[]\n", b"3\n", b"{}\n", b'{"epoch": 2}\n', b"", b"[" * 100_000 + b"\n"]
)
def test_a_damaged_log_is_one_clear_error(line, data, tmp_path):
    stopped(small(), data, tmp_path / "run", after=6)
    log = tmp_path / "run/log.jsonl"
    assert log.read_bytes().count(b"\n") == 1
    log.write_bytes(line)
    with pytest.raises(anytime.AnytimeError, match=r"log\.jsonl .*the run cannot be continued") as error:
        train(small(), data, output=tmp_path / "run", lr=0.01, resume=True)
    assert "\n" not in str(error.value)
    assert log.read_bytes() == line


def test_tensorboard_that_fails_is_a_warning_and_no_end(data, tmp_path, caplog):
    stopped(small(), data, tmp_path / "run", after=2)
    (tmp_path / "run/tensorboard").write_text("a file where its folder should be")
    train(small(), data, output=tmp_path / "run", lr=0.01, epochs=2, resume=True)
    warnings = [record.getMessage() for record in caplog.records if record.name.startswith("anytime")]
    assert len(warnings) == 1
    assert "TensorBoard's files" in warnings[0]
    assert (tmp_path / "run/model.safetensors").is_file()


FULL = """
import resource, sys, anytime, torch
data = anytime.load_data("digits").subset(100)
torch.manual_seed(1)
net = anytime.create_model("resann-1-4", in_channels=1)
limit = 2000  # bytes in a file: more than the log of an epoch, less than that of ten
scheme = anytime.AdaLoss(3)
scheme.register_forward_hook(lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
try:
    anytime.fit(net, data, scheme, epochs=10, output=sys.argv[1], checkpoint_seconds=1000, show=False)
except anytime.AnytimeError as error:
    print("refused:", error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files")
def test_a_full_disk_is_one_clear_error_and_leaves_the_checkpoint(tmp_path, environment):
    done = processes.run(["-c", FULL, tmp_path / "run"], env=environment)
    assert done.returncode == 0, done.stderr
    assert "log.jsonl: [Errno 27] File too large. The run can be resumed" in done.stdout
    read_tensors(tmp_path / "run/checkpoint.safetensors")


def test_a_run_that_began_while_the_lock_was_waited_for_is_not_continued(tmp_path):
    folder = RunFolder(tmp_path / "run", {"seed": 0}, resume=False, about={})
    acquire = folder.lock.acquire

    def meanwhile(timeout):
        with RunFolder(tmp_path / "run", {"seed": 0}, resume=False, about={}):
            pass
        return acquire(timeout=timeout)

    folder.lock.acquire = meanwhile
    with pytest.raises(anytime.AnytimeError, match="holds a run already"), folder:
        pass
