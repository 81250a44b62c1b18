import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest
import torch
from waiting import LONG

SCHEMES = ["adaloss", "adaloss:update_every=7,final_extra=1", "geometric-mean", "log-barrier"]


OBSERVE = """
import sys, torch, anytime
from anytime import distributed
distributed.begin()
draw, seen = torch.Generator().manual_seed(distributed.rank()), {}
for name in sys.argv[2:]:
    scheme = anytime.create_scheme(name, exits=5)
    for step in range(50):
        losses = torch.rand(5, generator=draw).requires_grad_()
        scheme(losses).backward()
        with torch.no_grad():
            for parameter in scheme.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        seen[name, step] = {key: value.clone() for key, value in scheme.state_dict().items()}
        if distributed.rank() == 0:  # validation on one rank alone: nobody waits for the other, and nothing is observed
            scheme.eval()(torch.full((5,), 9.0))
            with torch.no_grad():
                scheme.train()(torch.full((5,), 9.0))
torch.save(seen, f"{sys.argv[1]}-{distributed.rank()}")
distributed.end()
"""


def ranks(program, environment, size=2):
    """Run a program once for each rank, as torchrun would; returns their ends."""
    group = {"WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
    started = [processes.Child(program, env={**environment, **group, **each}) for each in own]
    for process in started:
        process.wait()
    return started


def test_weights_and_averages_are_equal_on_both_ranks_at_every_step(tmp_path, environment):
    for process in ranks(["-c", OBSERVE, tmp_path / "seen", *SCHEMES], environment):
        assert process.poll() == 0, process.stderr
    first, second = (torch.load(tmp_path / f"seen-{rank}") for rank in range(2))
    assert len(first) == 50 * len(SCHEMES)
    for step, state in first.items():
        for key, value in state.items():
            assert torch.equal(value.nan_to_num(), second[step][key].nan_to_num()), (step, key)


TRAIN = """
import sys, torch, anytime
from torch import nn
from anytime import distributed
distributed.begin()
data = anytime.load_data("digits").subset(int(sys.argv[2]))
torch.manual_seed(0)
stages = [nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh()), nn.Sequential(nn.Linear(32, 32), nn.Tanh())]
net = anytime.AnytimeNetwork(stages, [nn.Linear(32, 10), nn.Linear(32, 10)])
scheme = anytime.AdaLoss(2)
seen = []
scheme.register_forward_hook(lambda _, losses, __: seen.append([distributed.rank(), *scheme.weights.tolist(),
                                                                 *scheme.average.tolist()]))
result = anytime.fit(net, data, scheme, epochs=2, batch_size=40, lr=0.05, pad=1, flip=False, show=False)
result_file = f"{sys.argv[1]}-{distributed.rank()}"
parameters = [p.detach().flatten().tolist() for p in net.parameters()]
import json
json.dump({"seen": seen, "parameters": parameters, "history": result.history,
           "errors": result.curve.errors}, open(result_file, "w"))
distributed.end()
"""


def torchrun(program, restarts=0):
    """The command that runs a program on two ranks."""
    options = ["--nproc-per-node", "2", "--max-restarts", str(restarts), "--master-port", str(free_port())]
    return [sys.executable, "-m", "torch.distributed.run", *options, *program]


def free_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize("images", [pytest.param(400, marks=pytest.mark.slow), 395])  # shared out evenly, and not
def test_two_ranks_train_as_one(images, tmp_path, environment):
    """20 steps on a network without batch norm: the same losses to 1e-5, and on both ranks the same bits."""
    processes.run(["-c", TRAIN, tmp_path / "1", images], env=environment, check=True)
    for process in ranks(["-c", TRAIN, tmp_path / "2", images], environment):
        assert process.poll() == 0, process.stderr
    alone, first, second = (json.loads((tmp_path / name).read_text()) for name in ("1-0", "2-0", "2-1"))
    assert len(alone["seen"]) == 20
    for one, a, b in zip(alone["seen"], first["seen"], second["seen"], strict=True):
        assert a[1:] == b[1:], "weights and averages, bit for bit"
        assert a[1:] == pytest.approx(one[1:], abs=1e-5)
    assert first["parameters"] == second["parameters"]
    for epoch, record in enumerate(alone["history"]):
        assert first["history"][epoch]["train"]["losses"] == pytest.approx(record["train"]["losses"], abs=1e-5)
        assert first["history"][epoch]["validation"]["errors"] == record["validation"]["errors"]
    assert first["errors"] == second["errors"] == alone["errors"]


def command_line(folder, *more):
    options = ["--model", "resann-1-4", "--epochs", "4", "--checkpoint-seconds", "0", "--output", str(folder)]
    return ["-m", "anytime", "train", *options, *more]


def children(pid):
    found = [p for p in Path("/proc").iterdir() if p.name.isdigit()]
    parents = {}
    for process in found:
        try:
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return sorted(child for child, parent in parents.items() if parent == pid)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the ranks in /proc")
@pytest.mark.promise
def test_a_killed_rank_goes_on_and_ends_as_undisturbed(tmp_path, environment):
    subprocess.run(torchrun(command_line(tmp_path / "whole")), env=environment, check=True, capture_output=True)
    process = subprocess.Popen(
        torchrun(command_line(tmp_path / "killed"), restarts=1), env=environment, stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "killed/checkpoint.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(children(process.pid)[-1], signal.SIGKILL)
    _, complaint = process.communicate(timeout=LONG)
    assert process.returncode == 0, complaint
    assert "exitcode: -9" in complaint, "it was really killed"
    whole, killed = ((tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "killed"))
    assert whole == killed


@pytest.mark.promise
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path, environment):
    stop = subprocess.Popen(torchrun(command_line(tmp_path / "run")), env=environment, stderr=subprocess.DEVNULL)
    while not (tmp_path / "run/checkpoint.safetensors").exists():
        assert stop.poll() is None
        time.sleep(0.01)
    stop.send_signal(signal.SIGTERM)
    stop.wait()
    assert not (tmp_path / "run/config.json").exists(), "it was not done yet"
    processes.run(command_line(tmp_path / "run", "--resume"), env=environment, check=True)
    assert len((tmp_path / "run/log.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize("scheme", ["opt-2", pytest.param("const", marks=pytest.mark.slow)])
def test_exits_left_out_trouble_no_rank(scheme, tmp_path, environment):
    for process in ranks(command_line(tmp_path / "run", "--scheme", scheme, "--epochs", "1"), environment):
        assert process.poll() == 0, process.stderr
    assert (tmp_path / "run/model.safetensors").exists()


def test_a_batch_that_cannot_be_shared_out_is_refused(tmp_path, environment):
    for process in ranks(command_line(tmp_path / "run", "--batch-size", "1"), environment):
        assert process.poll() == 2
        assert "use a batch size of at least 2" in process.stderr
