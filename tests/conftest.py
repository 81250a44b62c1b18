import os
import sys

import hypothesis
import public
import pytest
import torch

collect_ignore_glob = ["conftest.py", "*/conftest.py"]  # no doctests in them, and several of one name

public.repair_torchvision()  # before Lightning, timm or transformers are imported, by a doctest too
hypothesis.settings.register_profile(
    "anytime",
    deadline=None,
    derandomize=True,
    max_examples=100,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("anytime")


def pytest_addoption(parser):
    parser.addoption("--write-tables", action="store_true", help="write tables of docs/ instead of comparing them")


@pytest.fixture
def write_tables(pytestconfig):
    """Whether tables of the documents are written; without the option no test changes a file of the repository."""
    return pytestconfig.getoption("--write-tables")


def pytest_fixture_setup(fixturedef):
    """A network that several tests share starts from the same numbers whichever of them comes first."""
    if fixturedef.scope != "function":
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def ray_cluster():
    """A local Ray cluster of two cores, whose processes can import what this one can."""
    ray = pytest.importorskip("ray", reason="clusters need Ray: pip install 'anytime-nets[cluster]'")
    here = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=here)
    yield ray
    ray.shutdown()


@pytest.fixture
def environment():
    """For child processes: one thread each, so that two can run at once."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "TERM": "dumb"}
