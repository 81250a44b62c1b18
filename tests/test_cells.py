"""Single cells of experiments from the command line, and schemes of one's own in them."""

import json
import sys

import processes
import pytest
from test_experiments import command, digits, made_up, runner

import anytime
from experiments import EXPERIMENTS, load, table_weights
from experiments.cells import cells
from experiments.records import Records

MINE = """
import torch

class Squares(torch.nn.Module):
    '''Knows losses only: no weights to show.'''

    def forward(self, losses):
        return losses.square().sum()

def squares(exits):
    return Squares()

def nothing(exits):
    return exits
"""


@pytest.fixture
def my_package(tmp_path, monkeypatch):
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package/schemes.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def test_a_scheme_of_ones_own_trains_and_leaves_a_record(my_package):
    run = digits("my_package.schemes:squares", epochs=1)
    processes.run(runner(run, my_package), check=True)
    record = Records.read(my_package / "records")[run.name]
    assert record["run"]["scheme"] == "my_package.schemes:squares"
    assert len(record["test"]["errors"]) == len(record["epochs"]["losses"][0]) == 3


def test_cells_are_the_settings_with_these_schemes_and_seeds():
    runs = [run for run in table_weights.runs("laptop") if run.data == "svhn"]
    made = cells(runs, ["adaloss", "opt-9", "a.b:c"], 3)
    assert [(run.scheme, run.seed) for run in made] == [(s, k) for s in ("adaloss", "opt-9", "a.b:c") for k in range(3)]
    known = {run.name: run for run in runs}
    assert all(known[run.name] == run for run in made if run.scheme == "adaloss")
    assert {run.name for run in cells(runs, None, None)} == set(known)
    assert {run.seed for run in cells(runs, None, 2)} == {0, 1}


def test_the_command_shows_cells_beside_each_other(monkeypatch, capsys, my_package):
    runs = [run for run in table_weights.runs("laptop") if run.data == "svhn"]
    made = cells(runs, ["adaloss", "my_package.schemes:squares"], 2)
    for run in made:
        error = 0.1 + 0.01 * run.seed + (0.02 + 0.001 * run.seed) * (run.scheme != "adaloss")
        (my_package / f"{run.name}.json").write_text(json.dumps(made_up(run, lambda _, error=error: error)))
    line = "run table_weights --only svhn --schemes adaloss,my_package.schemes:squares --seeds 2 --records ."
    code, out, _ = command(monkeypatch, capsys, line)
    assert code == 0
    assert "| my_package.schemes:squares | 12.6 ± 0.8 |" in out
    assert "| my_package.schemes:squares | 2.05 [1.41, 2.69] |" in out
    assert "cifar10" not in out


@pytest.mark.parametrize(
    ("scheme", "says"),
    [
        ("nowhere:scheme", "there is no module nowhere"),
        ("my_package.schemes:other", "has no other"),
        ("my_package.schemes:nothing", "must be a torch.nn.Module"),
        ("adalos", "adalos"),
    ],
)
def test_a_scheme_that_cannot_be_made_is_refused_before_anything_is_trained(
    monkeypatch, capsys, my_package, scheme, says
):
    line = f"run table_weights --preset minutes --schemes {scheme} --records records --output runs"
    code, out, _ = command(monkeypatch, capsys, line)
    assert says in code
    assert not out
    assert not (my_package / "runs").exists()


def test_seeds_are_a_number_of_at_least_one(monkeypatch, capsys, my_package):  # noqa: ARG001
    code, _, _ = command(monkeypatch, capsys, "run table_weights --seeds 0 --records records")
    assert "--seeds=0 must be an integer >= 1" in code


def test_no_experiment_has_a_cell_that_differs_in_its_settings_only():
    """Names of runs are unique over all experiments: a cell's record is that of its settings."""
    seen: dict[str, object] = {}
    for name in EXPERIMENTS:
        for run in load(name).runs("laptop"):
            assert seen.setdefault(run.name, run) == run
    with pytest.raises(anytime.AnytimeError):
        anytime.create_scheme("my_package.schemes:squares", 3)
