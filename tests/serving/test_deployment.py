"""Replicas behind Ray Serve."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "serve_cluster.py"


@pytest.mark.promise
def test_a_killed_replica_loses_no_request_that_has_time(environment):
    pytest.importorskip("ray.serve", reason="Ray Serve is missing: pip install 'anytime-nets[cluster]'")
    done = subprocess.run([sys.executable, EXAMPLE], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "killed one of 2 replicas" in done.stdout
    counts = re.search(r"(\d+) requests: {'in time': (\d+)}", done.stdout)
    assert counts is not None, done.stdout
    assert counts[1] == counts[2] == "240"
