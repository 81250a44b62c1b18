"""Teams for the tests of teams."""

import multiprocessing

import processes
import pytest
from test_eann import ensemble

from anytime import Team


@pytest.fixture(scope="module")
def team():
    with Team(ensemble(), workers=2, threads=1) as team:
        yield team


@pytest.fixture
def quick_start(monkeypatch):
    """Workers that start at once, for tests of what happens to them afterwards."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: processes.FORKED)
