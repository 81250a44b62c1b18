import json


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


def test_to_resume_a_finished_ensemble_changes_nothing(run, tmp_path):
    assert run("train-ensemble --members resann-1-4 --data digits --subset 60 --epochs 1 --output e")[0] == 0
    assert run("calibrate e --budget 1")[0] == 0
    before = {path.name: path.read_bytes() for path in tmp_path.joinpath("e").glob("*.json")}
    code, _, err = run("train-ensemble --output e --resume")
    assert code == 0, err
    assert {path.name: path.read_bytes() for path in tmp_path.joinpath("e").glob("*.json")} == before
    assert "policy.json" in before
    code, _, err = run("calibrate e --risk 0.3")
    assert (code, "validation images of digits" in err) == (2, True), "its exits were chosen with them"
