"""What is known of a network's latency and costs: kept on the network and beside the model."""

import copy
import json
import pickle
import sys
import threading

import pytest
import torch
from forge import forge_json

import anytime
from anytime.inference.latency import remember, times_of

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
    with pytest.raises(anytime.AnytimeError, match="6 stages, the network 3"):
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


def test_what_is_known_stays_with_the_network():
    net = anytime.create_model("resann-2-8").eval()
    anytime.profile(net, X, repeats=1)
    cost = anytime.predict(net, X).macs
    known = times_of(net)
    assert known.keys() == times_of(copy.deepcopy(net)).keys() == times_of(pickle.loads(pickle.dumps(net))).keys()
    assert net.state_dict().keys() == anytime.create_model("resann-2-8").state_dict().keys()
    twin = copy.deepcopy(net)
    before = dict(times_of(twin))
    anytime.predict(net, X[:1])
    assert times_of(twin) == before, "a copy learns by itself"
    net.forget()
    assert not times_of(net)
    assert anytime.predict(net, X).macs == cost


def test_changing_the_exits_of_an_ensemble_forgets_its_stages():
    eann = anytime.EANN([anytime.create_model("resann-1-8"), anytime.create_model("resann-2-8")]).eval()
    anytime.profile(eann, X, repeats=1)
    macs = anytime.predict(eann, X).macs
    eann.offered = eann.offered[:2]
    assert not times_of(eann)
    assert anytime.predict(eann, X).macs < macs


def test_threads_that_learn_at_once_learn_one_network():
    net = anytime.create_model("resann-2-8").eval()
    threads = [threading.Thread(target=anytime.predict, args=(net, X)) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (known,) = times_of(net).values()
    assert len(known.stages) == len(known.exits) == 6


def test_a_prediction_holds_no_lock():
    """Another thread can predict while one stands still at any line; so a fork cannot leave anything locked."""
    net, seen = anytime.AnytimeNetwork([torch.nn.Linear(2, 2)], [torch.nn.Linear(2, 2)]).eval(), set()

    def predict():
        net.forget()
        assert anytime.predict(net, torch.zeros(1, 2), macs=100, deadline=1e9).macs == 8

    def pause(frame, event, _):
        line = frame.f_code, frame.f_lineno
        if event == "line" and line not in seen:
            seen.add(line)
            other = threading.Thread(target=predict, daemon=True)
            other.start()
            other.join(60)
            assert not other.is_alive(), f"{frame.f_code.co_filename}, line {frame.f_lineno} holds a lock"
        return pause if "anytime" in frame.f_code.co_filename else None

    predict()
    before = sys.gettrace()
    sys.settrace(pause)
    try:
        predict()
    finally:
        sys.settrace(before)
    assert len(seen) > 100
