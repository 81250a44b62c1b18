"""Damaged files of every kind that is loaded: only AnytimeError may come out, and never other contents in silence."""

import json
import random
from contextlib import suppress
from itertools import pairwise

import pytest
import torch
from forge import forge_json
from fuzz import mutations

import anytime
from anytime.inference.batch_times import BatchTimes, Line, read_batch_times
from anytime.inference.latency import Profile, read_profiles
from anytime.measuring import Kind
from anytime.training.checkpoint import CHECKPOINT, load_checkpoint, save_checkpoint
from anytime.training.run_folder import RunFolder, read_run

FAST = 100
SLOW = 3500


def model(folder):
    net = anytime.create_model("resann-1-4", num_classes=3, in_channels=1)
    net.preprocessing = anytime.Preprocessing(1, (8, 8), [0.3], [0.2], ["ä", "b", "c"])
    anytime.save(net, folder, source="a shelf")


def read_model(folder):
    net = anytime.load(folder)
    return net.config, net.preprocessing, net.state_dict()


def policy(folder):
    anytime.Policy("confidence", [0.9, None, 0.75], [1.0, 1.1, 0.9, 1.0], [1, 2, 3, 4], [0.25] * 4, 2.5).save(folder)


def profile(folder):
    Profile([0.1, 0.2], [0.01, None], Kind("cpu", 2, (("torch.float32", (1, 3, 8, 8)),))).save(folder)


def batch_times(folder):
    kind = Kind("cpu", 2, (("torch.float32", (1, 3, 8, 8)),))
    BatchTimes([Line(0.1, 0.2), Line(0.0, 0.3)], [Line(0.01, 0.0), None], kind).save(folder)


def checkpoint(folder):
    tensors = {"net": {"a": torch.arange(6.0), "b": torch.tensor(3)}, "optimizer": {"m": torch.ones(2, 2)}}
    save_checkpoint(folder, tensors, {"epoch": 2, "position": 7, "seconds": 1.5})


def exported(folder):
    net = anytime.create_model("resann-1-4", num_classes=3, in_channels=1)
    net.preprocessing = anytime.Preprocessing(1, (8, 8), [0.3], [0.2], ["ä", "b", "c"])
    policy = anytime.Policy("confidence", [0.9, None], [1.0, 1.1, 0.9], [1, 2, 3], [0.25, 0.5, 0.25], 2.5)
    anytime.export.onnx(net, torch.zeros(1, 1, 8, 8), folder, policy=policy)


def read_exported(folder):
    net = anytime.load_exported(folder)
    return net.description, net(torch.ones(1, 1, 8, 8))


LOADERS = {
    "anytime.json": (exported, read_exported),
    "stage-02.onnx": (exported, read_exported),
    "config.json": (model, read_model),
    "model.safetensors": (model, read_model),
    "policy.json": (policy, anytime.Policy.load),
    "profile.json": (profile, read_profiles),
    "batch_times.json": (batch_times, read_batch_times),
    CHECKPOINT: (checkpoint, load_checkpoint),
}


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def damage(folder, name, n, seed):
    write, read = LOADERS[name]
    write(folder)
    whole, content = read(folder), (folder / name).read_bytes()
    refused = 0
    for mutated in mutations(content, seed, n):
        (folder / name).write_bytes(mutated)
        try:
            found = read(folder)
        except anytime.AnytimeError:
            refused += 1
        else:
            assert equal(found, whole), mutated
    assert refused > n * 0.8
    (folder / name).write_bytes(content)
    assert equal(read(folder), whole)


@pytest.mark.parametrize("name", LOADERS)
def test_damaged_files(tmp_path, name):
    damage(tmp_path, name, FAST, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADERS)
def test_many_damaged_files(tmp_path, name):
    damage(tmp_path, name, SLOW, seed=1)


VALUES = [None, True, 0, -1, 10**400, 1e308, float("nan"), float("inf"), "", "x" * 999, [], {}, [[]], {"a": 1}, 2**63]


def rewritten(content, draw):
    """A JSON value with one part replaced, dropped or doubled."""
    if not isinstance(content, dict | list) or not content or draw.random() < 0.3:
        return draw.choice(VALUES)
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    copy, key = content.copy(), draw.choice(keys)
    action = draw.randrange(4)
    if action == 0:
        del copy[key]
    elif action == 1 and isinstance(copy, list):
        copy.insert(key, copy[key])
    else:
        copy[key] = rewritten(copy[key], draw)
    return copy


def use_exported(found):
    _, answers = found
    assert all(logits.shape == (1, 3) and logits.isfinite().all() for logits in answers)


def use_model(found):
    config, preprocessing, state = found
    assert json.loads(json.dumps(config)) == config
    assert all(tensor.is_floating_point() or tensor.dtype == torch.int64 for tensor in state.values())
    if preprocessing is not None:
        image = preprocessing(torch.zeros(1, preprocessing.channels, 10, 12, dtype=torch.uint8))
        assert image.shape[:2] == (1, preprocessing.channels)
        assert image.isfinite().all()


def use_policy(found):
    exits = found.choose_exits(torch.randn(len(found.costs), 5, 3))
    assert ((exits >= 0) & (exits < len(found.costs))).all()
    assert found.cost(exits) <= max(found.costs)


def use_profiles(found):
    for each in found:
        assert all(0 <= before <= after < 1e12 for before, after in pairwise([0.0, *each.through]))


def use_batch_times(found):
    for times in found:
        lines = [line for line in (*times.stages, *times.heads) if line is not None]
        assert all(0 <= line.at(4) < 1e12 for line in lines)


USES = {
    "anytime.json": use_exported,
    "config.json": use_model,
    "policy.json": use_policy,
    "profile.json": use_profiles,
    "batch_times.json": use_batch_times,
}


def rewrite(folder, name, n, seed):
    """What is wrong in itself, but has the right checksum, is refused; or it works like any other."""
    write, read = LOADERS[name]
    write(folder)
    content, draw = json.loads((folder / name).read_text()), random.Random(seed)
    USES[name](read(folder))
    refused = 0
    for _ in range(n):
        while not isinstance(changed := rewritten(content, draw), dict):
            pass
        forge_json(folder / name, changed)
        try:
            found = read(folder)
        except anytime.AnytimeError:
            refused += 1
        else:
            USES[name](found)
    assert n > refused > n * 0.2


@pytest.mark.parametrize("name", USES)
def test_senseless_files(tmp_path, name):
    rewrite(tmp_path, name, FAST, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_many_senseless_files(tmp_path, name):
    rewrite(tmp_path, name, SLOW, seed=1)


def read_log(folder):
    with RunFolder(folder, {}, resume=True, about={}) as run:
        return run.keep_epochs(2)


def damaged_runs(folder, n, seed):
    records = [{"epoch": i, "train": {"losses": [1.5, 0.5]}, "weights": [1.0, 1.0]} for i in (1, 2)]
    log = "".join(json.dumps(record) + "\n" for record in records).encode()
    run = json.dumps({"asked": {"model": "resann-1-4"}, "seed": 0}).encode()
    (folder / "run.json").write_bytes(run)
    for mutated in mutations(log, seed, n):
        (folder / "log.jsonl").write_bytes(mutated)
        with suppress(anytime.AnytimeError):
            read_log(folder)
    for mutated in mutations(run, seed, n):
        (folder / "run.json").write_bytes(mutated)
        with suppress(anytime.AnytimeError):
            read_run(folder)


def test_damaged_runs(tmp_path):
    damaged_runs(tmp_path, FAST, seed=0)


@pytest.mark.slow
def test_many_damaged_runs(tmp_path):
    damaged_runs(tmp_path, SLOW, seed=1)
