"""The model that comes with the package is what its files say."""

import torch

import anytime
from anytime.files import read_json
from anytime.serving.embedded import FOLDER, samples, samples_for, start_engine


def test_it_is_small():
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 2e6


def test_it_is_right_about_its_images_in_the_end():
    net = anytime.load(FOLDER).float()
    assert len(samples()) == 12
    with torch.inference_mode():
        last = net(net.preprocess(list(samples())))[-1].argmax(1)
    assert [net.preprocessing.classes[i] for i in last] == [path.stem.partition("-")[2] for path in samples()]


def test_its_record_belongs_to_it():
    net = anytime.load(FOLDER)
    record = read_json(FOLDER / "training.json")
    assert record["model"] == net.config
    assert record["last_epoch"]["epoch"] == record["recipe"]["epochs"]
    errors = read_json(FOLDER / "evaluation.json")["errors"]
    assert len(errors) == net.exits == len(anytime.Policy.load(FOLDER).temperatures)
    assert errors[-1] < 0.12 < errors[0]


def test_its_images_are_for_models_of_its_classes():
    assert samples_for(anytime.load(FOLDER).preprocessing.classes) == samples()
    assert samples_for(["cat", "dog"]) == ()


def test_an_engine_for_it_writes_nothing_into_the_package():
    before = sorted(path.name for path in FOLDER.iterdir())
    with start_engine(FOLDER, processes=0, max_batch=1) as engine:
        assert engine.submit(torch.zeros(1, 3, 32, 32), deadline=60.0).result().logits.shape == (1, 10)
        assert engine.model.policy is not None
    assert sorted(path.name for path in FOLDER.iterdir()) == before
