import math

import numpy as np
import pytest
import torch

import anytime
from anytime.errors import AnytimeError, check_integer, check_number, require


@pytest.mark.parametrize("value", [0, -1, 1.0, True, None, "2", math.nan, [1]])
def test_not_an_integer(value):
    with pytest.raises(AnytimeError, match=r"exits=.* must be an integer >= 1$"):
        check_integer("exits", value)


@pytest.mark.parametrize("value", [-1e-9, 1, math.nan, math.inf, -math.inf, True, None, "0.5", 10**400, 1j])
def test_not_a_number(value):
    with pytest.raises(AnytimeError, match=r"momentum=.* must be a number >= 0 and < 1$"):
        check_number("momentum", value, below=1)


def test_bounds():
    assert check_integer("anneal", np.int64(0), least=0) == 0
    assert check_number("gamma", np.float32(1), most=1) == 1.0
    with pytest.raises(AnytimeError, match=r"gamma=2 must be a number >= 0 and <= 1$"):
        check_number("gamma", 2, most=1)
    with pytest.raises(AnytimeError, match=r"strength=0 must be a number > 0$"):
        check_number("strength", 0, above=0)


@pytest.mark.parametrize("value", [torch.nn.Linear(2, 2), torch.zeros(20, 20), "a" * 100, [0.1] * 50])
def test_what_is_given_does_not_hide_what_is_expected(value):
    for check in (check_integer, check_number):
        with pytest.raises(AnytimeError) as error:
            check("exits", value)
        assert str(error.value).startswith("exits=")
        assert len(str(error.value)) < 110
        assert "\n" not in str(error.value)
    net = torch.nn.Sequential(*[torch.nn.Linear(2, 2)] * 3)
    with pytest.raises(AnytimeError, match=r"^exits=Sequential\(…\) must be an integer >= 1$"):
        anytime.AdaLoss(net)


def test_a_missing_package_names_its_extra():
    with pytest.raises(ImportError, match=r'run: pip install "anytime-nets\[data\]", or in a clone: .*"\.\[data\]"$'):
        require("no_such_package", "data")


def test_a_package_that_cannot_be_imported_names_the_remedy(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        AnytimeError, match=r"nms does not exist\).*--force-reinstall torch torchvision broken_package$"
    ):
        require("broken_package", "examples")
