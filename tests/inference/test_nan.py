"""No answer is NaN: networks whose outputs are NaN are refused, and the likely cause is named."""

import backends
import pytest
import torch

import anytime
from anytime.inference.conformal import ConformalSets
from anytime.inference.policy import Policy

X, LABELS = torch.randn(4, 3, 16, 16), torch.zeros(4, dtype=torch.int64)
ONES = [1.0, 1.0, 1.0]


def policy(*thresholds):
    return Policy("confidence", list(thresholds), ONES, costs=[1.0, 2.0, 3.0], shares=[0.0, 0.0, 1.0], budget=3.0)


CALLS = {
    "evaluate": lambda net, x: anytime.evaluate(net, [(x, LABELS)]),
    "evaluate one exit": lambda net, x: anytime.evaluate(net, [(x, LABELS)], only=[0]),
    "predict": lambda net, x: anytime.predict(net, x),
    "predict to a limit": lambda net, x: anytime.predict(net, x, exits=1),
    "predict to a deadline": lambda net, x: anytime.predict(net, x, deadline=600.0),
    "start": lambda net, x: anytime.start(net, x).result(),
    "a policy": lambda net, x: policy(None, None).predict(net, x),
    "an early policy": lambda net, x: policy(0.0, 0.0).predict(net, x),
    "calibrate": lambda net, x: anytime.calibrate(net, [(x, LABELS)], budget=0.9, unit="fraction"),
    "calibrate a score": lambda net, x: anytime.calibrate(
        net, [(x, LABELS)], budget=0.9, unit="fraction", score=lambda logits: logits.amax(-1)
    ),
}


def network():
    torch.manual_seed(0)
    return anytime.create_model("resann-1-8").eval()


@pytest.mark.parametrize("call", CALLS)
def test_nan_outputs_are_refused(call):
    net = network()
    CALLS[call](net, X)
    with pytest.raises(anytime.AnytimeError, match="NaN"):
        CALLS[call](net, torch.full_like(X, torch.nan))
    torch.nn.init.constant_(net.stages[0][0][0].weight, torch.nan)
    with pytest.raises(anytime.AnytimeError, match="NaN"):
        CALLS[call](net, X)


@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_the_samples_and_the_cause_are_named(backend):
    net, x = backends.on(backend, network, X), X.clone()
    x[2] = torch.nan
    with pytest.raises(
        anytime.AnytimeError, match=r"exit 3 of 3 \(index 2\) are NaN for sample 2 of 4: the input has infinite or NaN"
    ):
        anytime.predict(net, x)
    with pytest.raises(anytime.AnytimeError, match=r"for sample 2 of 4: the input has infinite or NaN"):
        policy(None, None).predict(net, x)
    rest = x[[0, 1, 3]]
    assert torch.equal(policy(None, None).predict(net, rest).logits, anytime.predict(net, rest).logits)


def test_nan_weights_are_named():
    net = network()
    torch.nn.init.constant_(net.heads[-1].fc.bias, torch.nan)
    anytime.predict(net, X, exits=1)  # is not concerned
    anytime.evaluate(net, [(X, LABELS)], only=[0, 1])
    for call in ("predict", "evaluate"):
        with pytest.raises(anytime.AnytimeError, match=r"index 2\)? are NaN .*: its weights heads\.2\..*bias have NaN"):
            CALLS[call](net, X)


def test_no_set_of_an_answer_that_is_nan():
    sets = ConformalSets(0.9, [0.1, 0.1])
    logits = torch.tensor([[0.0, 1.0], [torch.nan, 0.0]])
    assert sets.of(logits[:1], 0).any()
    for exits in (1, torch.tensor([0, 1])):
        with pytest.raises(anytime.AnytimeError, match="sample 1 of 2"):
            sets.of(logits, exits)


def test_minus_infinity_is_a_logit():
    """Of classes that are ruled out."""
    net = network()
    torch.nn.init.constant_(net.heads[-1].fc.bias[:1], -torch.inf)
    assert anytime.predict(net, X).logits[0, 0] == -torch.inf
    assert anytime.evaluate(net, [(X, LABELS)]).errors[-1] == 1.0
