import json
import subprocess
import sys
import textwrap

import laws
import pytest
import torch
from torch import nn

import anytime
from anytime.files import read_tensors, write_tensors, write_whole


def test_loading_gives_what_was_saved(tmp_path):
    net = anytime.create_model("resann-2-8", num_classes=7, in_channels=2, period=2)
    laws.save_law(net, torch.randn(2, 2, 9, 11))
    anytime.save(net, tmp_path, classes=["a", "b"])
    assert anytime.load(tmp_path).config["about"] == {"classes": ["a", "b"]}
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


def test_a_network_of_ones_own(tmp_path):
    def build():
        return anytime.AnytimeNetwork([nn.Linear(4, 4)], [nn.Linear(4, 2)])

    net = build()
    anytime.save(net, tmp_path)
    with pytest.raises(ValueError, match=r"load\(folder, net=...\)"):
        anytime.load(tmp_path)
    again = anytime.load(tmp_path, build())
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))


HOSTILE = {
    "no folder": (None, None, "no such folder"),
    "empty": ({}, None, "no config.json"),
    "config is no JSON": ({"config.json": b"{"}, None, "cannot read"),
    "config is a list": ({"config.json": b"[]"}, None, "not a JSON object"),
    "config is binary": ({"config.json": b"\xff\xfe\x00"}, None, "cannot read"),
    "deeply nested": ({"config.json": b"[" * 100_000}, None, "cannot read"),
    "unknown model": ({"config.json": b'{"model": "resnet-1000"}'}, None, "unknown model"),
    "unknown option": ({"config.json": b'{"model": "resann-1-4", "evil": 1}'}, None, "no option 'evil'"),
    "wrong type": ({"config.json": b'{"model": "resann-1-4", "num_classes": "ten"}'}, None, "describes no network"),
    "no weights": ({"config.json": b'{"model": "resann-1-4"}'}, None, "missing, truncated or no safetensors"),
    "a pickle": ({"model.safetensors": b"\x80\x04\x95cos\nsystem\n"}, "resann-1-4", "no safetensors"),
    "truncated": ("half", "resann-1-4", "truncated"),
    "huge header": ({"model.safetensors": b"\xff" * 8 + b"{}"}, "resann-1-4", "no safetensors"),
    "another model": ({"config.json": b'{"model": "resann-1-8"}'}, "resann-1-4", "made for another network"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused(case, tmp_path):
    files, saved, says = HOSTILE[case]
    folder = tmp_path / "model"
    if files is not None:
        folder.mkdir()
    if saved:
        anytime.save(anytime.create_model(saved), folder)
    if files == "half":
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        for name, content in (files or {}).items():
            (folder / name).write_bytes(content)
    with pytest.raises(anytime.AnytimeError, match=says):
        anytime.load(folder)


def test_a_failed_write_leaves_the_file_from_before(tmp_path):
    path = tmp_path / "file"
    write_whole(path, lambda temporary: temporary.write_text("old"))

    def fail(temporary):
        temporary.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(anytime.AnytimeError, match="No space left on device; the one from before is untouched"):
        write_whole(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_while_saving(tmp_path):
    """A real one is not ours to fill: the system refuses to let this process write more than 100 kB to a file."""
    program = textwrap.dedent("""
        import resource, signal, sys, torch
        from pathlib import Path
        from anytime.files import write_tensors
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            write_tensors(Path(sys.argv[1]), {"a": torch.zeros(1_000_000)}, {"epoch": 2})
        except ValueError as error:
            print(error)
    """)
    path = tmp_path / "checkpoint.safetensors"
    write_tensors(path, {"a": torch.ones(1000)}, {"epoch": 1})
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert "could not write" in done.stdout
    assert "from before is untouched" in done.stdout
    tensors, about = read_tensors(path)
    assert about == {"epoch": 1}
    assert torch.equal(tensors["a"], torch.ones(1000))
    assert list(tmp_path.iterdir()) == [path]


def test_config_is_plain_json(tmp_path):
    anytime.save(anytime.create_model("resann-1-4", num_classes=3), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == {"model": "resann-1-4", "num_classes": 3}


def test_a_missing_tensor_is_not_taken_from_another(tmp_path):
    anytime.save(anytime.create_model("resann-2-8"), tmp_path)
    path = tmp_path / "model.safetensors"
    tensors, about = read_tensors(path)
    gone = "stages.1.bn1.weight"
    assert tensors["stages.1.bn1.bias"].shape == tensors.pop(gone).shape
    write_tensors(path, tensors, about)
    with pytest.raises(anytime.AnytimeError, match=gone.replace(".", r"\.")):
        anytime.load(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_network_comes_back_in_the_precision_that_it_was_saved_in(tmp_path, dtype):
    net = anytime.create_model("resann-1-4").to(dtype).eval()
    anytime.save(net, tmp_path)
    again = anytime.load(tmp_path)
    for name, tensor in net.state_dict().items():
        assert again.state_dict()[name].dtype == tensor.dtype
        assert torch.equal(again.state_dict()[name], tensor)
