"""What is known of a network's latency: kept beside the model, refused where it does not belong."""

import json

import pytest
import torch
from forge import forge_json

import anytime
from anytime.inference.latency import remember

X = torch.zeros(2, 3, 16, 16)


def test_a_profile_is_kept_beside_the_model(tmp_path):
    net = anytime.create_model("resann-2-8").eval()
    anytime.save(net, tmp_path)
    profile = anytime.profile(net, X, repeats=2)
    path = profile.save(tmp_path)
    anytime.profile(net, X[:1], repeats=2).save(tmp_path)
    anytime.profile(net, X, repeats=2).save(tmp_path)  # in the place of the first
    assert path.read_text().count('"stages"') == 2
    again = anytime.load(tmp_path)
    with pytest.raises(anytime.UnfinishedError) as error:  # known before anything has run
        anytime.predict(again, X, deadline=0)
    assert error.value.needed > 0
    forge_json(path, {"profiles": [{"stages": [1]}]})
    with pytest.raises(anytime.AnytimeError, match=r"profile\.json is damaged"):
        anytime.load(tmp_path)


def test_a_profile_of_another_network_is_refused():
    profile = anytime.profile(anytime.create_model("resann-2-8").eval(), X, repeats=2)
    with pytest.raises(anytime.AnytimeError, match="6 stages"):
        remember(anytime.create_model("resann-1-8"), profile)


def test_saving_another_model_forgets_its_profile(tmp_path):
    anytime.save(anytime.create_model("resann-2-8").eval(), tmp_path)
    anytime.profile(anytime.create_model("resann-2-8").eval(), X, repeats=2).save(tmp_path)
    anytime.save(anytime.create_model("resann-1-8"), tmp_path)
    assert not (tmp_path / "profile.json").exists()
    anytime.load(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        {"device": ["x"], "threads": [1]},
        {"heads": []},
        {"stages": [10**400] * 6},
        {"stages": [float("nan")] * 6},
        {"stages": [-1.0] * 6},
        {"stages": "111111"},
        {"inputs": 5},
    ],
)
def test_damaged_profiles_are_one_line(tmp_path, damage):
    anytime.save(anytime.create_model("resann-2-8").eval(), tmp_path)
    path = anytime.profile(anytime.create_model("resann-2-8").eval(), X, repeats=2).save(tmp_path)
    content = json.loads(path.read_text())
    content["profiles"][0] |= damage
    forge_json(path, content)
    with pytest.raises(anytime.AnytimeError, match="is damaged"):
        anytime.load(tmp_path)
