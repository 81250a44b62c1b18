import json

import pytest

import anytime

SHORT = "--data digits --subset 60 --epochs 1"


def test_a_member_that_was_killed_between_two_files_is_resumed(run, tmp_path):
    code, _, err = run(f"train-ensemble --members resann-1-4 {SHORT} --output e")
    assert code == 0, err
    weights = (tmp_path / "e/resann-1-4/model.safetensors").read_bytes()
    (tmp_path / "e/resann-1-4/config.json").unlink()
    code, out, err = run("train-ensemble --output e --resume")
    assert code == 0, err
    assert "are offered" in out
    assert (tmp_path / "e/resann-1-4/model.safetensors").read_bytes() == weights
    assert anytime.load(tmp_path / "e").order == [0]


def test_resume_needs_an_ensemble_or_its_description(run, tmp_path):
    code, _, err = run("train-ensemble --output typo --resume")
    assert code == 2
    assert "there is no ensemble in typo to resume" in err
    assert not (tmp_path / "typo").exists()


def test_an_ensemble_that_was_killed_before_its_first_member_keeps_its_options(run, tmp_path):
    asked = {"members": "resann-1-4", "data": "digits", "scheme": "adaloss", "seed": 0, "epochs": 1}
    (tmp_path / "e").mkdir()
    (tmp_path / "e/run.json").write_text(json.dumps({"ensemble": True, "asked": asked}))
    code, _, err = run("train-ensemble --output e --resume --epochs 2")
    assert code == 2
    assert "was started with --epochs 1, not 2" in err


@pytest.mark.usefixtures("ray_cluster")
def test_on_a_ray_cluster(run, tmp_path):
    code, out, err = run(f"train-ensemble --members resann-2-4,resann-1-4 {SHORT} --output e --cluster")
    assert code == 0, err
    assert "[1/2 resann-2-4] " in err
    assert "are offered" in out
    assert anytime.load(tmp_path / "e").order[0] == 1
