import sys

import pytest

import anytime
from anytime import cli

SHORT = "--data digits --subset 60 --epochs 1"


@pytest.fixture
def train(monkeypatch, capsys, tmp_path):
    """Run ``anytime train-ensemble`` in this process; gives exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def command(line):
        monkeypatch.setattr(sys, "argv", ["anytime", "train-ensemble", *line.split()])
        with pytest.raises(SystemExit) as end:
            cli.main()
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return command


def test_a_member_that_was_killed_between_two_files_is_resumed(train, tmp_path):
    code, _, err = train(f"--members resann-1-4 {SHORT} --output e")
    assert code == 0, err
    weights = (tmp_path / "e/resann-1-4/model.safetensors").read_bytes()
    (tmp_path / "e/resann-1-4/config.json").unlink()
    code, out, err = train("--output e --resume")
    assert code == 0, err
    assert "are offered" in out
    assert (tmp_path / "e/resann-1-4/model.safetensors").read_bytes() == weights
    assert anytime.load(tmp_path / "e").order == [0]


def test_resume_needs_an_ensemble_or_its_description(train, tmp_path):
    code, _, err = train("--output typo --resume")
    assert code == 2
    assert "there is no ensemble in typo to resume" in err
    assert not (tmp_path / "typo").exists()


def test_an_ensemble_that_was_killed_before_its_first_member_keeps_its_options(train, tmp_path, monkeypatch):
    monkeypatch.setattr("anytime.cli.ensemble.run_jobs", lambda *_: sys.exit(1))
    assert train(f"--members resann-1-4 {SHORT} --output e")[0] == 1
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    code, _, err = train("--output e --resume --epochs 2")
    assert code == 2
    assert "was started with --epochs 1, not 2" in err


@pytest.mark.usefixtures("ray_cluster")
def test_on_a_ray_cluster(train, tmp_path):
    code, out, err = train(f"--members resann-2-4,resann-1-4 {SHORT} --output e --cluster")
    assert code == 0, err
    assert "[1/2 resann-2-4] " in err
    assert "are offered" in out
    assert anytime.load(tmp_path / "e").order[0] == 1
