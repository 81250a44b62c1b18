import json
import os
import resource

import laws
import pytest
import torch
from forge import forge_config, forge_weights
from test_files import hostile, together
from torch import nn

import anytime


def test_loading_gives_what_was_saved(tmp_path):
    net = anytime.create_model("resann-2-8", num_classes=7, in_channels=2, period=2)
    laws.save_law(net, torch.randn(2, 2, 9, 11))
    anytime.save(net, tmp_path, source="the attic")
    assert anytime.load(tmp_path).config["about"] == {"source": "the attic"}
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


def test_a_network_of_ones_own(tmp_path):
    def build():
        return anytime.AnytimeNetwork([nn.Linear(4, 4)], [nn.Linear(4, 2)])

    net = build()
    anytime.save(net, tmp_path)
    with pytest.raises(ValueError, match=r"anytime\.load\(.*, net=net\)"):
        anytime.load(tmp_path)
    again = anytime.load(tmp_path, build())
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))


def test_weights_go_to_the_exits_that_they_were_saved_from(tmp_path):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(8)), nn.Linear(6, 3))
    x = torch.zeros(2, 6)
    anytime.save(anytime.convert(model, x, exits=["1", "5"]), tmp_path)
    with pytest.raises(anytime.AnytimeError, match=r"places \['1', '5', .*given has places \['2', '6', "):
        anytime.load(tmp_path, anytime.convert(model, x, exits=["2", "6"]))
    with pytest.raises(anytime.AnytimeError, match=r"2-dimensional torch.float32.*3-dimensional torch.float32"):
        anytime.load(tmp_path, anytime.convert(model, x[:, None], exits=["1", "5"]))
    again = anytime.load(tmp_path, anytime.convert(model, x[:1], exits=["1", "5"]))
    eann = anytime.EANN([again])
    anytime.save(eann, tmp_path)
    anytime.load(tmp_path, anytime.EANN([again]))
    with pytest.raises(anytime.AnytimeError, match=r"'1', '5', .*'2', '6', "):
        anytime.load(tmp_path, anytime.EANN([anytime.convert(model, x, exits=["2", "6"])]))


def plain(stage=nn.Identity, outputs=3):
    """A network of one's own, with random weights."""
    return anytime.AnytimeNetwork(
        [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), stage())], [nn.Linear(4, 3), nn.Linear(4, outputs)]
    )


@pytest.mark.parametrize(
    "other",
    [
        lambda: plain(outputs=4),
        lambda: plain(outputs=3).double(),
        lambda: plain(lambda: nn.Linear(4, 4)),
        lambda: plain(lambda: nn.BatchNorm1d(4)),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_network_that_was_given_is_filled_whole_or_left_as_it_was(other, swapped, tmp_path):
    saved, given = (other(), plain()) if swapped else (plain(), other())
    anytime.save(saved, tmp_path)
    before = {name: tensor.clone() for name, tensor in given.state_dict().items()}
    with pytest.raises(anytime.AnytimeError, match="belongs to another network"):
        anytime.load(tmp_path, given)
    assert given.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in given.state_dict().items())


def test_a_damaged_profile_leaves_the_network_that_was_given(tmp_path):
    given = plain()
    anytime.save(plain(), tmp_path)
    (tmp_path / "profile.json").write_text("{}")
    before = given.heads[0].weight.clone()
    with pytest.raises(anytime.AnytimeError, match=r"profile\.json"):
        anytime.load(tmp_path, given)
    assert torch.equal(given.heads[0].weight, before)


HOSTILE = {
    "no folder": (None, "no such folder"),
    "empty": ({}, "no config.json"),
    "config is no JSON": ({"config.json": b"{"}, "cannot read"),
    "config is a list": ({"config.json": b"[]"}, "not a JSON object"),
    "config is binary": ({"config.json": b"\xff\xfe\x00"}, "cannot read"),
    "deeply nested": ({"config.json": b"[" * 100_000}, "cannot read"),
    "no checksum": ({"config.json": b'{"model": "resann-9999999-8"}'}, "has no checksum"),
    "a pickle": ({"model.safetensors": b"\x80\x04\x95cos\nsystem\n"}, "no safetensors"),
    "huge header": ({"model.safetensors": b"\xff" * 8 + b"{}"}, "no safetensors"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused(case, tmp_path):
    files, says = HOSTILE[case]
    folder = tmp_path / "model"
    if files is not None:
        folder.mkdir()
    if case in ("a pickle", "huge header"):
        anytime.save(anytime.create_model("resann-1-4"), folder)
    for name, content in (files or {}).items():
        (folder / name).write_bytes(content)
    with pytest.raises(anytime.AnytimeError, match=says):
        anytime.load(folder)


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder", "huge"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_files_that_never_end_are_refused(tmp_path, kind, name):
    anytime.save(anytime.create_model("resann-1-4"), tmp_path)
    (tmp_path / name).unlink()
    hostile(tmp_path / name, kind)
    with pytest.raises(anytime.AnytimeError, match="cannot read"):
        anytime.load(tmp_path)


WRONG_CONFIGS = {
    "unknown model": {"model": "resnet-1000"},
    "no option 'evil'": {"model": "resann-1-4", "evil": 1},
    "num_classes='ten' must be an integer": {"model": "resann-1-4", "num_classes": "ten"},
    "belongs to another network": {"model": "resann-1-5"},
    "describes no network": {"members": []},
    "more parameters than the": {"model": "resann-33333-8"},
    "29,999,997 units": {"model": "resann-9999999-8"},
    "unknown model 'resann-9": {"model": "resann-" + "9" * 80 + "-8"},
    "at most 100 characters": {"model": "resann-" + "9" * 5000 + "-8"},
    "must be a string": {"model": 5},
    "more parameters": {"model": "eann", "members": [{"model": "resann-1-1"}] * 20_000},
    "in_channels=1000000000000000000 must be": {"model": "resann-1-4", "in_channels": 10**18},
    "16,777,217 units|must be an integer": {"model": "msdnet-cifar-99999999-4-2"},
    "units: at most": {"model": "denseann-600000004-12"},
    "describes no network of this version": {"model": "msdnet-cifar-5-4-2", "growth_factors": [10**18] * 3},
    "of this version": {"model": "msdnet-cifar-5-4-2", "reduction": 1e308},
    "no network of this": {"model": "densenet-10-4", "exits": [10**400]},
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return anytime.save(anytime.create_model("resann-1-4"), tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("says", WRONG_CONFIGS)
def test_what_a_config_makes_is_bounded_by_the_weights(says, small):
    """Forged with a right checksum. In bounded time and memory; the suite would not survive the numbers above."""
    forge_config(small, network=WRONG_CONFIGS[says])
    before = resource.getrusage(resource.RUSAGE_SELF)
    with pytest.raises(anytime.AnytimeError, match=says):
        anytime.load(small)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime - before.ru_utime < 2
    assert after.ru_maxrss - before.ru_maxrss < 200_000


@pytest.mark.parametrize("changes", [{"layout": None}, {"weights": 5}, {"network": []}, {"about": "x"}, {"layout": {}}])
def test_configs_of_wrong_types_are_refused(tmp_path, changes):
    anytime.save(anytime.create_model("resann-1-4"), tmp_path)
    forge_config(tmp_path, **changes)
    with pytest.raises(anytime.AnytimeError, match=next(iter(changes)) if changes != {"layout": {}} else "exits None"):
        anytime.load(tmp_path)


def test_a_mixed_folder_is_refused(tmp_path):
    """As a save that is killed between its two files leaves it; also with another network of the same kind."""
    for name in "ab":
        anytime.save(anytime.create_model("resann-1-4"), tmp_path / name, classes=[name])
    (tmp_path / "b/model.safetensors").replace(tmp_path / "a/model.safetensors")
    with pytest.raises(anytime.AnytimeError, match="must be from the same save: save the model again") as error:
        anytime.load(tmp_path / "a")
    assert "\n" not in str(error.value)


def test_a_moved_folder_can_be_loaded_and_a_lost_file_is_named(tmp_path):
    anytime.save(anytime.create_model("resann-1-4"), tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    anytime.load(tmp_path / "b")
    with pytest.raises(anytime.AnytimeError, match="no such folder"):
        anytime.load(tmp_path / "a")
    (tmp_path / "b/model.safetensors").unlink()
    with pytest.raises(anytime.AnytimeError, match="missing, truncated or no safetensors file"):
        anytime.load(tmp_path / "b")


def test_four_threads_save_to_one_folder(tmp_path):
    """Every load sees the weights of one save with the facts of the same save."""
    nets = []
    for value in range(4):
        net = anytime.create_model("resann-1-4")
        nn.init.constant_(net.heads[0].fc.weight, value)
        nets.append(net)
    anytime.save(nets[0], tmp_path, value=0)

    def save(value):
        for _ in range(8):
            anytime.save(nets[value], tmp_path, value=value)

    def load():
        for _ in range(15):
            net = anytime.load(tmp_path)
            assert net.heads[0].fc.weight.eq(net.config["about"]["value"]).all()

    together(*(lambda v=v: save(v) for v in range(4)), load, load)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


def test_a_loaded_network_does_not_change_with_its_file(tmp_path):
    anytime.save(anytime.create_model("resann-1-4"), tmp_path)
    net = anytime.load(tmp_path)
    before = net.heads[0].fc.weight.clone()
    with open(tmp_path / "model.safetensors", "rb+") as file:
        file.write(bytes(os.path.getsize(file.name)))
    assert torch.equal(net.heads[0].fc.weight, before)


def test_config_is_plain_json(tmp_path):
    anytime.save(anytime.create_model("resann-1-4", num_classes=3), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["network"] == {"model": "resann-1-4", "num_classes": 3}
    assert config["layout"] == {"exits": 3}


def test_a_missing_tensor_is_not_taken_from_another(tmp_path):
    anytime.save(anytime.create_model("resann-2-8"), tmp_path)
    gone = "stages.1.bn1.weight"
    forge_weights(tmp_path, lambda tensors: tensors.pop(gone))
    with pytest.raises(anytime.AnytimeError, match=gone.replace(".", r"\.")):
        anytime.load(tmp_path)


def test_what_json_cannot_hold_is_refused_before_anything_is_replaced(tmp_path):
    anytime.save(anytime.create_model("resann-1-4"), tmp_path, value=1)
    for value in (float("nan"), {1, 2}):
        with pytest.raises(anytime.AnytimeError, match="what JSON can hold"):
            anytime.save(anytime.create_model("resann-1-4"), tmp_path, value=value)
    assert anytime.load(tmp_path).config["about"] == {"value": 1}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_network_comes_back_in_the_precision_that_it_was_saved_in(tmp_path, dtype):
    net = anytime.create_model("resann-1-4").to(dtype).eval()
    anytime.save(net, tmp_path)
    again = anytime.load(tmp_path)
    for name, tensor in net.state_dict().items():
        assert again.state_dict()[name].dtype == tensor.dtype
        assert torch.equal(again.state_dict()[name], tensor)
