"""What the load benchmark counts."""

import importlib
import threading
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def serving_load():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("serving_load")


class Every:
    """A server that answers later, from another thread, each request as the next of some outcomes."""

    def __init__(self, outcomes):
        self.outcomes = iter(outcomes)

    def ask(self, x, left, done):  # noqa: ARG002
        threading.Timer(0.01, done, args=next(self.outcomes)).start()


def test_a_refusal_that_comes_over_http_is_a_refusal_and_not_a_late_answer(serving_load):
    right = torch.tensor([[0.0, 1.0]])
    outcomes = [(right, 3), (None, serving_load.REFUSED), (right, 5), (None, serving_load.REFUSED)]
    asked = [serving_load.Asked(0.05 * i, 0, 60.0) for i in range(4)]
    result = serving_load.run(Every(outcomes), asked, torch.zeros(1, 3, 4, 4), torch.tensor([1]))
    assert (result.score, result.admitted, result.in_time, result.exits) == (0.5, 0.5, 1.0, 4)
    assert result.refusal_p99 > 0
