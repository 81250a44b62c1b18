"""Teams, jobs and the command for ensembles on a Ray cluster: in one file, so that one cluster serves all of them."""

import sys
import warnings

import pytest
import torch
from test_eann import X, ensemble
from test_team import LONG, dies, three

import anytime
from anytime import Team, cli
from anytime.ensemble import workers
from anytime.training.jobs import TrainingJob, run_jobs

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_a_team(tmp_path, monkeypatch):
    with Team(three(tmp_path), workers=2, threads=1, cluster=True) as team:
        dies(team, tmp_path)
        runs = [team.start(X) for _ in range(20)]
        assert all(run.result(LONG).complete and run.lost == {} for run in runs)
        with warnings.catch_warnings(record=True), pytest.raises(anytime.AnytimeError, match="shapes"):
            team.predict(torch.zeros(2, 99))
        monkeypatch.setattr(workers, "START_SECONDS", 0.5)
        with pytest.raises(anytime.AnytimeError, match=r"\d of the cluster's 2 CPUs are free"):
            Team(ensemble(), workers=1, threads=1, cluster=True)  # the first team has them


@pytest.mark.parametrize(("workers", "threads"), [(1, 9999), (3, 1), (2, 2)])
def test_a_cluster_that_is_too_small(workers, threads):
    said = f"workers={workers} with threads={threads} need {workers * threads} CPUs.*the Ray cluster has 2"
    with pytest.raises(anytime.AnytimeError, match=said):
        Team(ensemble(), workers=workers, threads=threads, cluster=True)


def test_jobs(tmp_path, capsys):
    note = "import sys; print(sys.argv[1], file=sys.stderr); open(sys.argv[2], 'w').write(sys.argv[1])"
    jobs = [TrainingJob(f"job {i}", ["-c", note, str(i), str(tmp_path / f"{i}")]) for i in range(3)]
    run_jobs(jobs, cluster=True)
    assert [(tmp_path / f"{i}").read_text() for i in range(3)] == ["0", "1", "2"]
    assert "[2/3 job 1] 1" in capsys.readouterr().err


def test_train_ensemble(tmp_path, monkeypatch, capsys):
    command = "train-ensemble --members resann-2-4,resann-1-4 --data digits --subset 60 --epochs 1 --cluster --output"
    monkeypatch.setattr(sys, "argv", ["anytime", *command.split(), str(tmp_path / "e")])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    assert end.value.code == 0, err
    assert "[1/2 resann-2-4] " in err
    assert "are offered" in out
    assert anytime.load(tmp_path / "e").order[0] == 1
