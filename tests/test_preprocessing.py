"""How images become what a network sees, and that it travels with the model."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from forge import forge_config
from PIL import Image

import anytime
from anytime import Preprocessing, cli


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small run on the digits."""
    folder = tmp_path_factory.mktemp("run") / "digits"
    data = anytime.load_data("digits")
    net = anytime.create_model("resann-1-4", in_channels=1)
    anytime.fit(net, data.subset(100), epochs=1, pad=1, flip=False, output=folder, show=False)
    return net, data, folder


def test_it_is_saved_and_loaded_with_the_model(trained):
    net, data, folder = trained
    again = anytime.load(folder)
    assert again.preprocessing == net.preprocessing == data.preprocessing
    assert list(again.preprocessing.classes) == data.classes
    pixels = data.test.pixels[:16]
    seen = data.normalize(pixels)
    assert torch.equal(again.preprocess(pixels), seen)
    assert torch.equal(again.preprocess(pixels.numpy()), seen)
    images = [Image.fromarray(image[0].numpy()) for image in pixels]
    assert torch.equal(again.preprocess(images), seen)
    assert torch.equal(again.preprocess(images[3]), seen[3:4])


def test_load_then_evaluate_normalizes_as_in_training(trained):
    """The test images of a data set with other statistics are normalized by the network's, not by their own."""
    net, data, folder = trained
    same = anytime.evaluate(anytime.load(folder), data)
    bright = anytime.Data(data.test, test=data.test, classes=data.classes, name="bright", mean=[0.9], std=[0.1])
    assert anytime.evaluate(anytime.load(folder), bright).errors == same.errors
    net = anytime.load(folder)
    net.preprocessing = None
    assert anytime.evaluate(net, bright).errors != same.errors


def test_images_of_other_classes_are_refused(trained):
    net, data, _ = trained
    letters = anytime.Data(data.train, test=data.test, classes=list("abcdefghij"), name="letters")
    with pytest.raises(anytime.AnytimeError, match=r"trained for 10 classes \(0, 1, 2, …\).*10 classes \(a, b, c, …\)"):
        anytime.evaluate(net, letters)


def test_classes_without_names_fit_all_data(trained):
    net, data, folder = trained
    unnamed = anytime.load(folder)
    unnamed.preprocessing = replace(net.preprocessing, classes=())
    assert anytime.evaluate(unnamed, data) == anytime.evaluate(net, data)


def test_a_refused_training_changes_nothing(trained):
    _, data, folder = trained
    net = anytime.create_model("resann-1-4", in_channels=1)
    with pytest.raises(anytime.AnytimeError, match="holds a run already"):
        anytime.fit(net, data, epochs=1, output=folder, show=False)
    assert net.preprocessing is None


def test_an_ensemble_has_what_its_members_share():
    one, other = (anytime.create_model(f"resann-{n}-4", in_channels=1) for n in (1, 2))
    eann = anytime.EANN([one, other])
    assert eann.preprocessing is None
    digits = anytime.load_data("digits").preprocessing
    one.preprocessing = digits
    assert eann.preprocessing is None
    eann.preprocessing = digits
    assert other.preprocessing == eann.preprocessing == digits


def test_files_are_resized_around_their_middle(tmp_path):
    """A wide picture: black, with a gray square in its middle."""
    picture = np.zeros((64, 128, 3), np.uint8)
    picture[:, 32:96] = 128
    Image.fromarray(picture).save(tmp_path / "wide.png")
    prepare = Preprocessing(3, (16, 16), [0.0] * 3, [1 / 255] * 3)
    for given in (tmp_path / "wide.png", str(tmp_path / "wide.png"), Image.open(tmp_path / "wide.png")):
        assert prepare(given).shape == (1, 3, 16, 16)
        torch.testing.assert_close(prepare(given)[..., 2:14], torch.full((1, 3, 16, 12), 128.0))
    gray = Preprocessing(1, (8, 16), [0.0], [1 / 255])(tmp_path / "wide.png")
    assert gray.shape == (1, 1, 8, 16)
    torch.testing.assert_close(gray[0, 0, :, 5:11], torch.full((8, 6), 128.0))
    assert gray[0, 0, :, 0].eq(0).all()


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (torch.zeros(1, 3, 8, 8), "torch.float32.*expected torch.uint8"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), r"\(3, 8, 8\).*N × 3 × height × width"),
        (np.zeros((2, 8, 8, 3), np.uint8), r"\(2, 8, 8, 3\)"),
        ("nowhere.png", "cannot read the image nowhere.png"),
        ("/dev/zero", "not a regular file"),
        ([], "at least one image"),
        (5, "got a int for an image"),
    ],
)
def test_what_is_no_image_is_refused(images, says):
    with pytest.raises(anytime.AnytimeError, match=says):
        Preprocessing(3, (8, 8), [0.5] * 3, [0.5] * 3)(images)


def test_a_network_without_it_says_how_to_give_it():
    with pytest.raises(anytime.AnytimeError, match=r"net\.preprocessing = anytime\.Preprocessing\("):
        anytime.create_model("resann-1-4").preprocess(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


@pytest.mark.parametrize(
    "change",
    [
        {"channels": 0},
        {"size": [10**9, 8]},
        {"size": 8},
        {"mean": [10**400]},
        {"mean": [0.5, 0.5]},
        {"std": [0.0]},
        {"std": ["x"]},
        {"classes": [1]},
        {"crop": 2},
        {"colour": "red"},
    ],
)
def test_damaged_preprocessing_is_refused(tmp_path, change):
    net = anytime.create_model("resann-1-4", in_channels=1)
    net.preprocessing = Preprocessing(1, (8, 8), [0.5], [0.5], ["a", "b"])
    anytime.save(net, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    forge_config(tmp_path, preprocessing=config["preprocessing"] | change)
    with pytest.raises(anytime.AnytimeError, match="no valid preprocessing") as error:
        anytime.load(tmp_path)
    assert "\n" not in str(error.value)


def test_predict_on_the_command_line(trained, tmp_path, capsys, monkeypatch):
    """A real image file: one of the digits, enlarged and in color."""
    net, data, folder = trained
    digit = Image.fromarray(data.test.pixels[0, 0].numpy()).resize((80, 80)).convert("RGB")
    digit.save(tmp_path / "digit.jpg")

    def run(*words):
        monkeypatch.setattr("sys.argv", ["anytime", "predict", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, *capsys.readouterr()

    code, out, _ = run(folder, tmp_path / "digit.jpg", "--json", "--top", 3)
    assert code == 0
    record = json.loads(out)
    with torch.inference_mode():
        probabilities = net.eval()(net.preprocess(tmp_path / "digit.jpg"))[-1][0].softmax(-1)
    assert [found["class"] for found in record["classes"]] == [str(int(i)) for i in probabilities.topk(3).indices]
    assert record["classes"][0]["probability"] == pytest.approx(float(probabilities.max()), abs=1e-5)
    assert (record["exit"], record["exits"], record["stopped_by"]) == (2, 3, None)
    code, out, _ = run(folder, tmp_path / "digit.jpg", "--deadline", "1000s")
    assert code == 0
    assert all(word in out for word in ("class", "probability", "exit", "milliseconds", "3 of 3"))
    for words, says in [
        ((folder, tmp_path / "none.jpg"), "cannot read the image"),
        ((folder, tmp_path / "digit.jpg", "--deadline", "soon"), "such as 20ms"),
        ((folder, tmp_path / "digit.jpg", "--deadline", "0ms"), "deadline"),
        ((folder, tmp_path / "digit.jpg", "--top", 0), "--top=0 must be an integer"),
        ((tmp_path, tmp_path / "digit.jpg"), "is not a saved model"),
    ]:
        code, _, err = run(*words)
        assert code == 2
        assert says in err
        assert err.count("\n") == 1
