"""What is written to a folder and stays there. Hostile and damaged folders: refused, and why is said."""

import json
import shutil

import numpy as np
import onnx
import pytest
import torch
from forge import forge_json
from torch import nn

import anytime
from anytime.export.description import checksum
from anytime.inference.batch_times import measure_batches


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A network whose stages have the same names and shapes of values, one of them with weights of several stages."""
    folder = tmp_path_factory.mktemp("export") / "onnx"
    shared = nn.Linear(32, 32)
    stages = [nn.Sequential(nn.Linear(32, 32), nn.ReLU(), shared) for _ in range(3)]
    net = anytime.AnytimeNetwork(stages, [nn.Linear(32, 4) for _ in range(3)])
    return anytime.export.onnx(net, torch.randn(2, 32), folder)


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "onnx")


def seal(folder, **changes):
    """Let ``anytime.json`` agree with the files as they are now."""
    content = json.loads((folder / "anytime.json").read_text()) | changes
    content["files"] = {name: checksum((folder / name).read_bytes()) for name in content["files"]}
    forge_json(folder / "anytime.json", content)


def refused(folder, message):
    with pytest.raises(anytime.AnytimeError, match=message):
        anytime.load_exported(folder)


def test_a_truncated_graph(folder):
    path = folder / "stage-02.onnx"
    path.write_bytes(path.read_bytes()[:-100])
    refused(folder, r"stage-02\.onnx is not the file that was exported: its checksum is wrong")
    seal(folder)
    refused(folder, r"stage-02\.onnx is not an ONNX model that can be run")


def test_a_missing_graph(folder):
    (folder / "head-03.onnx").unlink()
    refused(folder, r"head-03\.onnx cannot be read")
    (folder / "head-03.onnx").mkdir()
    refused(folder, r"head-03\.onnx cannot be read")


def test_swapped_stages(folder):
    first, second = (folder / f"stage-0{i}.onnx" for i in (2, 3))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    refused(folder, "damaged, swapped or of another export")
    seal(folder)
    refused(folder, "the graph of another stage")


def test_files_of_two_exports(folder, original, tmp_path):
    net = anytime.AnytimeNetwork([nn.Linear(32, 32) for _ in range(3)], [nn.Linear(32, 4) for _ in range(3)])
    other = anytime.export.onnx(net, torch.randn(2, 32), tmp_path / "other")
    shutil.copy(other / "head-02.onnx", folder)
    refused(folder, "checksum is wrong")
    shutil.copy(original / "head-02.onnx", folder)
    anytime.load_exported(folder)
    shutil.copy(other / "anytime.json", folder)
    refused(folder, "checksum is wrong")


def test_altered_shared_weights(folder):
    content = bytearray((folder / "shared.bin").read_bytes())
    content[5] ^= 1
    (folder / "shared.bin").write_bytes(content)
    refused(folder, r"shared\.bin is not the file that was exported")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"location": "../secret.bin"}, r"said to be in the file '\.\./secret\.bin'"),
        ({"location": "/etc/passwd"}, "said to be in the file '/etc/passwd'"),
        ({"location": "other.bin"}, r"in shared\.bin of the same folder"),
        ({"offset": "-8"}, "not within shared.bin"),
        ({"offset": str(2**40)}, "not within shared.bin"),
        ({"length": "8"}, "not within shared.bin"),
        ({"offset": "many"}, "not an ONNX model that can be run"),
    ],
)
def test_weights_elsewhere(folder, entry, message):
    """A model may name any file as that of its weights: none but our own is opened."""
    (folder.parent / "secret.bin").write_bytes(bytes(32 * 32 * 4))
    path = folder / "stage-01.onnx"
    model = onnx.load_model(path, load_external_data=False)
    (tensor,) = (t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL)
    for item in tensor.external_data:
        item.value = entry.get(item.key, item.value)
    path.write_bytes(model.SerializeToString())
    seal(folder)
    refused(folder, message)


def external(location, kind=onnx.TensorProto.FLOAT, dims=(32,)):
    """A tensor whose values are in a file."""
    size = 32 * (8 if kind == onnx.TensorProto.INT64 else 4)
    tensor = onnx.TensorProto(name="b", data_type=kind, dims=dims, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", 0), ("length", size)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def sparse(location, part="values"):
    """A sparse tensor whose values or indices are in a file."""
    values = onnx.numpy_helper.from_array(np.zeros(32, np.float32), "b")
    indices = onnx.numpy_helper.from_array(np.arange(32), "b-indices")
    if part == "values":
        values = external(location)
    else:
        indices = external(location, onnx.TensorProto.INT64)
    return onnx.helper.make_sparse_tensor(values, indices, [32])


def constant(**value):
    return onnx.helper.make_node("Constant", [], ["b"], **value)


def within_if(model, location):
    inner = onnx.helper.make_graph([], "inner", [], [model.graph.output[0]], [external(location)])
    true = onnx.numpy_helper.from_array(np.array(True))
    model.graph.node.insert(0, onnx.helper.make_node("If", ["yes"], ["b"], then_branch=inner, else_branch=inner))
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["yes"], value=true))


def within_function(model, location, **value):
    value = value or {"value": external(location)}
    opsets = [onnx.helper.make_opsetid("", 17)]
    model.functions.append(onnx.helper.make_function("own", "Bias", [], ["b"], [constant(**value)], opsets))
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    model.graph.node.insert(0, onnx.helper.make_node("Bias", [], ["b"], domain="own"))


def as_default(model, location):
    within_function(model, location, value=onnx.numpy_helper.from_array(np.zeros(32, np.float32)))
    model.functions[0].attribute_proto.append(onnx.helper.make_attribute("default", external(location)))


HIDING_PLACES = {
    "sparse values": lambda model, location: model.graph.sparse_initializer.append(sparse(location)),
    "sparse indices": lambda model, location: model.graph.sparse_initializer.append(sparse(location, "indices")),
    "constant": lambda model, location: model.graph.node.insert(0, constant(value=external(location))),
    "sparse constant": lambda model, location: model.graph.node.insert(0, constant(sparse_value=sparse(location))),
    "graph in a node": within_if,
    "function": within_function,
    "sparse constant of a function": lambda model, location: within_function(
        model, location, sparse_value=sparse(location)
    ),
    "default of a function": as_default,
    "training": lambda model, location: model.training_info.add().algorithm.initializer.append(external(location)),
}


@pytest.mark.parametrize("location", ["secret.bin", "shared.bin"])
@pytest.mark.parametrize("place", HIDING_PLACES)
def test_no_tensor_is_read_from_a_file(folder, place, location, monkeypatch):
    """ONNX has many places for tensors. One with external data would be read from the working directory."""
    (folder.parent / location).write_bytes(np.arange(32.0).astype(np.float32).tobytes() * 2)
    monkeypatch.chdir(folder.parent)
    path = folder / "stage-01.onnx"
    model = onnx.load_model(path, load_external_data=False)
    HIDING_PLACES[place](model, location)
    path.write_bytes(model.SerializeToString())
    seal(folder)
    refused(folder, f"said to be in the file '{location}'")


def test_paths_in_the_description(folder, tmp_path):
    content = json.loads((folder / "anytime.json").read_text())
    shutil.copy(folder / "stage-01.onnx", tmp_path / "outside.onnx")
    for name in ("../outside.onnx", str(tmp_path / "outside.onnx"), "..", "a/b", ""):
        stage = {**content["stages"][0], "file": name}
        changed = content | {"stages": [stage, *content["stages"][1:]]}
        forge_json(folder / "anytime.json", changed | {"files": {**content["files"], name: "0" * 64}})
        refused(folder, "not the name of a file in this folder")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "tea"}, "expected one of onnx"),
        ({"format": 99}, "another version"),
        ({"exits": [1, 2]}, "as many stages"),
        ({"states": [[], [], []]}, "takes"),
        ({"input": ["input", "input"]}, "none of them twice"),
        ({"structure": 7}, "do not match its structure"),
        ({"values": {}}, "do not match|not described"),
        ({"costs": {"macs": [1], "params": [1], "heads": [1]}}, "a cost for every exit"),
        ({"preprocessing": {"channels": -1}}, "damaged"),
        ({"policy": {"score": "hope"}}, "damaged"),
    ],
)
def test_descriptions_that_make_no_sense(folder, change, message):
    seal(folder, **change)
    refused(folder, message)


def test_types_and_shapes_of_another_network(folder):
    content = json.loads((folder / "anytime.json").read_text())
    for value in ({"type": "float64", "shape": ["batch", 32]}, {"type": "float32", "shape": ["batch", 31]}):
        seal(folder, values=content["values"] | {"state_01_0": value})
        refused(folder, "state_01_0 as tensor")


def test_an_altered_description(folder):
    path = folder / "anytime.json"
    path.write_text(path.read_text().replace('"onnx"', '"tea"', 1))
    refused(folder, "its checksum is wrong")
    refused(path, "it is a file")
    path.unlink()
    refused(folder, r"has no anytime\.json \(anytime export RUN --to onnx writes one\)")
    refused(folder / "nowhere", "no such folder")


def test_what_was_exported_is_loaded_whole(tmp_path):
    net = anytime.create_model("resann-1-4", num_classes=3, in_channels=1)
    net.preprocessing = anytime.Preprocessing(1, (8, 8), [0.3], [0.2], ["ä", "b", "c"], crop=0.875)
    policy = anytime.Policy("confidence", [0.9, None], [1.0, 1.1, 0.9], [1, 2, 3], [0.25, 0.5, 0.25], 2.5)
    folder = anytime.export.onnx(net, torch.zeros(1, 1, 8, 8), tmp_path, policy=policy, about={"from": "a shelf"})
    found = anytime.load_exported(folder)
    assert found.preprocessing == net.preprocessing
    assert found.policy == policy
    assert found.description.about["from"] == "a shelf"
    assert found.description.about["network"] == "resann-1-4"
    card = (folder / "MODEL_CARD.md").read_text()
    assert "Classes: ä, b, c." in card
    assert "0.875 of its height and width, resized to 1 × 8 × 8" in card
    assert "| 3 | stage-03.onnx | head-03.onnx |" in card
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    anytime.export.onnx(net, torch.zeros(1, 1, 8, 8), tmp_path, policy=policy, about={"from": "a shelf"})
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}, "the same export, byte for byte"


def test_an_earlier_export_is_removed_and_nothing_else(folder):
    """Its graphs, its shared weights, and the times that were measured of it."""
    mine = {"stage-plan.txt", "head-count.csv", "stage-1.onnx.old", "notes.md"}
    for name in mine:
        (folder / name).write_text("mine")
    (folder / "head-shots").mkdir()
    x = torch.randn(1, 32)
    earlier = anytime.load_exported(folder)
    anytime.profile(earlier, x, repeats=1).save(folder)
    measure_batches(earlier, x, batches=(1, 2), repeats=1).save(folder)
    net = anytime.AnytimeNetwork([nn.Linear(32, 32)], [nn.Linear(32, 4)])
    anytime.export.onnx(net, x, folder)
    written = {"anytime.json", "MODEL_CARD.md", "stage-01.onnx", "head-01.onnx"}
    assert {path.name for path in folder.iterdir()} == {*mine, *written, "head-shots"}


def test_the_folder_of_a_model_is_not_written_to(tmp_path):
    net, x = anytime.create_model("resann-1-4", num_classes=3, in_channels=1), torch.zeros(1, 1, 8, 8)
    saved, floats = anytime.save(net, tmp_path / "a"), anytime.export.onnx(net, x, tmp_path / "b")
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    for call in (
        lambda: anytime.export.onnx(net, x, saved),
        lambda: anytime.export.int8(floats, saved, [(x, torch.zeros(1))], [(x, torch.zeros(1))]),
    ):
        with pytest.raises(anytime.AnytimeError, match=r"holds a saved model: export to another folder, e\.g\. .*onnx"):
            call()
    assert before == {path.name: path.read_bytes() for path in saved.iterdir()}
