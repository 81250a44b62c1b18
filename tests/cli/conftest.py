"""The command, run in this process, and a finished run."""

import shutil
import sys

import pytest
import torch

import anytime
from anytime import cli


@pytest.fixture(autouse=True)
def threads():
    """Commands choose how many threads they compute with; other tests have as many as before."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command in this process; gives exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def command(line):
        monkeypatch.setattr(sys, "argv", ["anytime", *line.split()])
        with pytest.raises(SystemExit) as end:
            cli.main()
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return command


@pytest.fixture
def trained(finished, tmp_path):
    """A copy of the finished run, as ``a`` in the working directory."""
    shutil.copytree(finished, tmp_path / "a")
    return tmp_path / "a"


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    data = anytime.load_data("digits").subset(60)
    net = anytime.create_model("resann-1-4", num_classes=10, in_channels=1)
    about = {"asked": {"model": "resann-1-4", "data": "digits", "scheme": "adaloss", "subset": 60, "seed": 0}}
    recipe = anytime.training.recipe.RECIPES["digits"]
    about["asked"]["epochs"] = 1
    anytime.fit(net, data, recipe=recipe, epochs=1, output=folder, about=about, show=False)
    return folder
