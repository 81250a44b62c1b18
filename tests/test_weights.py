import copy
import math
import warnings

import laws
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anytime
from anytime.weights import adaloss, scheme

loss = st.floats(0, 1e6, allow_subnormal=False) | st.just(0.0)
sequences = st.integers(1, 12).flatmap(
    lambda exits: st.lists(st.lists(loss, min_size=exits, max_size=exits), min_size=1, max_size=8)
)
schemes = ["const", "linear", "half-end", "opt-2", "adaloss", "geometric-mean", "log-barrier"]


def reference(sequence, momentum, gamma, extra, every, power):
    """AdaLoss by the definition, in Python's own numbers: the weights after each call."""
    average, weights, result = list(sequence[0]), [1.0] * len(sequence[0]), []
    for call, losses in enumerate(sequence, 1):
        if call > 1:
            average = [momentum * a + (1 - momentum) * x for a, x in zip(average, losses, strict=True)]
        if call % every == 0:
            ratio = [(min(average) / a) ** power if a > min(average) else 1.0 for a in average]
            ratio[-1] += extra
            weights = [(1 - gamma) * r / max(ratio) + gamma for r in ratio]
        result.append(weights)
    return result


@settings(max_examples=1000)
@given(sequences, st.floats(0, 0.99), st.floats(0, 1), st.sampled_from([0.0, 1.0]), st.integers(1, 4), st.floats(0, 3))
def test_adaloss_follows_its_definition(sequence, momentum, gamma, extra, every, power):
    sequence = torch.tensor(sequence)
    balance = anytime.AdaLoss(sequence.shape[1], momentum, gamma, extra, every, power)
    given_so = reference(sequence.tolist(), momentum, gamma, extra, every, power)
    for losses, expected in zip(sequence, given_so, strict=True):
        total = balance(losses)
        assert balance.weights.tolist() == pytest.approx(expected, abs=1e-6)
        exact = math.fsum(b * x for b, x in zip(balance.weights.tolist(), losses.tolist(), strict=True))
        assert total.item() == pytest.approx(exact, rel=1e-5)


@settings(max_examples=1000)
@given(sequences, st.floats(0, 1), st.floats(1e-3, 1e3), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_adaloss_laws(sequence, gamma, scale, power):
    sequence = torch.tensor(sequence, dtype=torch.float64)
    balance, scaled = (anytime.AdaLoss(sequence.shape[1], gamma=gamma, power=power) for _ in range(2))
    for losses in sequence:
        balance(losses)
        scaled(losses * scale)
        weights = balance.weights
        assert weights.isfinite().all()
        assert weights.max() == 1
        assert (weights >= gamma - 1e-7).all()
        assert torch.allclose(weights, scaled.weights, atol=1e-6)
        by_average = weights[balance.average.argsort()]
        assert (by_average.diff() <= 1e-7).all()


@pytest.mark.filterwarnings("ignore:AdaLoss got a negative loss")
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, -1.0])
def test_a_loss_that_is_no_number_moves_no_average(bad):
    balance = anytime.AdaLoss(3)
    balance(torch.tensor([bad, 2.0, 1.0]))
    assert balance.weights.isfinite().all()
    balance(torch.tensor([4.0, 2.0, 1.0]))
    before = balance.average.clone()
    balance(torch.tensor([4.0, bad, 1.0]))
    assert balance.average.tolist() == before.tolist()
    assert balance.weights.tolist() == pytest.approx([0.2875, 0.525, 1.0])


def test_no_weight_no_say():
    balance = anytime.AdaLoss(2, gamma=0.0)
    balance(torch.tensor([1.0, 0.0]))
    assert balance(torch.tensor([math.inf, 0.0])).item() == 0
    with pytest.raises(ValueError, match="floating-point"):
        balance(torch.tensor([4, 2]))


@given(sequences, st.integers(0, 7), st.integers(1, 3), st.integers(1, 10))
def test_state_goes_on_where_it_was(sequence, at, every, steps):
    sequence = torch.tensor(sequence)
    balance = anytime.weights.AnnealedAdaLoss(sequence.shape[1], update_every=every, steps=steps)
    resumed = copy.deepcopy(balance)
    for i, losses in enumerate(sequence):
        if i == at:
            resumed.load_state_dict(copy.deepcopy(balance.state_dict()))
        balance(losses)
        if i >= at:
            resumed(losses)
            assert torch.equal(balance.weights, resumed.weights)


def test_gamma_falls_from_constant_weights():
    balance = anytime.weights.AnnealedAdaLoss(2, gamma=0.1, steps=10)
    early = []
    for _ in range(12):
        balance(torch.tensor([1e9, 1.0]))
        early.append(balance.weights[0].item())
    assert early[:10] == pytest.approx([1 - 0.09 * call for call in range(1, 11)], abs=1e-6)
    assert early[10:] == pytest.approx([0.1, 0.1], abs=1e-6)


@given(sequences)
def test_annealing_starts_as_const_and_ends_as_adaloss(sequence):
    sequence = torch.tensor(sequence)
    exits, steps = sequence.shape[1], len(sequence)
    adaloss, annealed = anytime.AdaLoss(exits), anytime.weights.AnnealedAdaLoss(exits, steps=steps)
    slow = anytime.weights.AnnealedAdaLoss(exits, steps=10**9)
    for losses in sequence:
        adaloss(losses)
        annealed(losses)
        slow(losses)
        assert torch.all(annealed.weights >= adaloss.weights - 1e-6)
    assert torch.allclose(slow.weights, torch.ones(exits))
    assert torch.allclose(annealed.weights, adaloss.weights)


def test_annealing_without_an_end_is_refused():
    with pytest.raises(anytime.AnytimeError, match="annealed:steps=5000"):
        anytime.create_scheme("annealed", 2)(torch.tensor([2.0, 1.0]))


def quadratic(theta):
    """Three losses of one parameter, none of which can be zero."""
    return (theta - torch.tensor([1.0, 2.0, 4.0])) ** 2 * torch.tensor([1.0, 10.0, 100.0]) + 1


def test_the_three_forms_of_the_objective_have_the_same_gradient():
    """Where the average is the loss, ∇ Σ B ℓ (AdaLoss, γ = 0) and Σ λ/ℓ ∇ℓ (log barrier) are ∇ Σ ln ℓ up to scale."""
    theta = torch.tensor(2.5, requires_grad=True)
    (expected,) = torch.autograd.grad(quadratic(theta).log().sum(), theta)
    (geometric,) = torch.autograd.grad(anytime.weights.GeometricMean(3)(quadratic(theta)), theta)
    assert geometric.item() == pytest.approx(expected.item(), rel=1e-5)
    (adaloss,) = torch.autograd.grad(anytime.AdaLoss(3, gamma=0)(quadratic(theta)), theta)
    assert adaloss.item() == pytest.approx(expected.item() * quadratic(theta).min().item(), rel=1e-5)
    barrier = anytime.weights.LogBarrier(3, strength=0.7)
    with torch.no_grad():
        barrier.log_weights.copy_((0.7 / quadratic(theta)).log())
    by_theta, by_weight = torch.autograd.grad(barrier(quadratic(theta)), [theta, barrier.log_weights])
    assert by_theta.item() == pytest.approx(0.7 * expected.item(), rel=1e-5)
    assert by_weight.abs().max() < 1e-6, "B = λ/ℓ is the optimum"


def test_log_barrier_learns_the_weights():
    barrier = anytime.weights.LogBarrier(3, strength=2.0)
    optimizer = torch.optim.SGD(barrier.parameters(), lr=0.05)
    for _ in range(500):
        optimizer.zero_grad()
        barrier(torch.tensor([4.0, 2.0, 1.0])).backward()
        optimizer.step()
    barrier(torch.tensor([4.0, 2.0, 1.0]))
    assert barrier.weights.tolist() == pytest.approx([0.5, 1.0, 2.0], rel=1e-4)


def test_geometric_mean_is_safe_at_zero():
    losses = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    value = anytime.weights.GeometricMean(3)(losses)
    value.backward()
    assert value.isfinite()
    assert losses.grad.tolist() == [0.0, 1.0, 0.5]


def test_for_square_losses_the_weights_are_those_of_maximum_likelihood():
    """B_i ∝ 1/σ_i², where y = ŷ_i + noise of variance σ_i² (Eq. 1)."""
    sigma = torch.tensor([3.0, 1.0, 0.5])
    balance = anytime.AdaLoss(3, momentum=0.99, gamma=0.0)
    for _ in range(2000):
        balance((torch.randn(100, 3) * sigma).square().mean(0))
    expected = sigma.min() ** 2 / sigma**2
    assert balance.weights.tolist() == pytest.approx(expected.tolist(), rel=0.05)


@pytest.mark.parametrize("name", schemes)
def test_evaluation_is_not_observed(name):
    laws.evaluation_law(anytime.create_scheme(name, exits=3), torch.tensor([4.0, 2.0, 1.0]))


@pytest.mark.parametrize("name", schemes)
def test_precision_is_kept(name):
    losses = torch.tensor([4.0, 2.0, 1.1], requires_grad=True)
    laws.precision_law(anytime.create_scheme(name, exits=3), losses)


@pytest.mark.parametrize("name", schemes)
def test_precision_does_not_depend_on_torchs_default(name):
    expected = {key: value.dtype for key, value in anytime.create_scheme(name, exits=3).state_dict().items()}
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        balance = anytime.create_scheme(name, exits=3)
    finally:
        torch.set_default_dtype(default)
    assert {key: value.dtype for key, value in balance.state_dict().items()} == expected


def test_averages_move_with_losses_of_16_bits():
    """Rounded to bfloat16, an average of 4 would stop at 1.25 on its way to 1: the steps would be too small."""
    balance = anytime.AdaLoss(2, momentum=0.99).bfloat16()
    balance(torch.tensor([4.0, 1.0], dtype=torch.bfloat16))
    for _ in range(500):
        balance(torch.tensor([1.0, 1.0], dtype=torch.bfloat16))
    assert balance.average.tolist() == pytest.approx([1, 1], abs=0.05)


def test_a_device_without_float64(monkeypatch):
    """MPS has none: nothing that is moved there may be float64. The meta device takes its place."""
    widest = scheme.widest_float
    choose = lambda device: torch.float32 if device == "meta" else widest(device)  # noqa: E731
    monkeypatch.setattr(scheme, "widest_float", choose)
    monkeypatch.setattr(adaloss, "widest_float", choose)
    to = torch.Tensor.to

    def without_float64(tensor, *args, **kwargs):
        result = to(tensor, *args, **kwargs)
        assert not (result.is_meta and result.dtype == torch.float64)
        return result

    monkeypatch.setattr(torch.Tensor, "to", without_float64)
    for name in schemes:
        balance = anytime.create_scheme(name, exits=3)
        expected = {key: value.dtype for key, value in balance.state_dict().items()}
        balance.to("meta")
        balance(torch.ones(3, device="meta"))
        assert torch.float64 not in {value.dtype for value in balance.state_dict().values()}
        again = balance.to_empty(device="cpu").state_dict()
        assert {key: value.dtype for key, value in again.items()} == expected


@pytest.mark.parametrize("name", schemes)
def test_a_list_of_losses(name):
    vector = torch.tensor([4.0, 3.0, 2.0, 1.0], requires_grad=True)
    expected = anytime.create_scheme(name, exits=4)(vector)
    for losses in ([*vector], (*vector,)):
        assert torch.equal(anytime.create_scheme(name, exits=4)(losses), expected)
    balance = anytime.create_scheme(name, exits=4)
    for wrong in ([4.0, 3.0, 2.0, 1.0], [vector, vector], [], [vector[0]], None, "losses"):
        with pytest.raises(anytime.AnytimeError, match=r"4 (exits|losses)"):
            balance(wrong)
    with pytest.raises(anytime.AnytimeError, match=r"losses are on meta and .* is on cpu; move it first"):
        balance(torch.ones(4, device="meta"))


@pytest.mark.parametrize(
    ("name", "says"),
    [("adaloss", "does not adapt"), ("geometric-mean", "gets no gradient"), ("log-barrier", "without bound")],
)
def test_negative_losses_are_warned_of_once(name, says):
    balance = anytime.create_scheme(name, exits=2)
    losses = torch.tensor([-0.5, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        balance(losses.abs())
        balance.eval()(losses)
        balance.train()
    with pytest.warns(UserWarning, match=rf"negative loss \(-0.5\).*{says}.*subtract a lower bound") as caught:
        [balance(losses) for _ in range(2)]
    assert len(caught) == 1
    assert caught[0].filename == __file__
    for fixed in ("const", "linear", "half-end", "opt"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            anytime.create_scheme(fixed, exits=2)(losses)


@pytest.mark.parametrize("name", schemes)
def test_every_scheme(name):
    scheme = anytime.create_scheme(name, exits=4)
    assert scheme(torch.tensor([4.0, 3.0, 2.0, 1.0])).shape == ()
    assert scheme.weights.shape == (4,)
    assert set(scheme.state_dict()) >= {"weights"}
    scheme(torch.tensor([0.0, 0.0, 0.0, 0.0]))
    scheme(torch.tensor([math.inf, 1e30, 1.0, 0.0]))
    assert scheme.weights.isfinite().all()
    with pytest.raises(ValueError, match="made for 4 exits"):
        scheme(torch.ones(3))
    net = anytime.models.ResANN(1, 4, in_channels=1, num_classes=3)
    laws.gradient_law(net, anytime.create_scheme(name, net.exits), torch.randn(4, 1, 8, 8))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("adalos", "unknown scheme"),
        ("opt-9", "exits 1 to 4"),
        ("opt-0", "exits 1 to 4"),
        ("adaloss:gama=1", "adaloss takes momentum, gamma"),
        ("adaloss:gamma=x", "key=number"),
        ("linear:first=nan", "key=number"),
        ("opt:exit=1", "opt-3 is the third exit"),
        ("adaloss:update_every=1.5", "integer >= 1"),
        ("adaloss:gamma=2", "number >= 0 and <= 1"),
        ("adaloss:momentum=1", "number >= 0 and < 1"),
        ("adaloss:update_every=0", "integer >= 1"),
        ("adaloss:final_extra=-1", "number >= 0"),
        ("const:a=1", "no options"),
    ],
)
def test_a_wrong_scheme_is_told_what_would_work(name, says):
    with pytest.raises(ValueError, match=says):
        anytime.create_scheme(name, exits=4)


@settings(max_examples=200)
@given(sequences, st.data())
def test_exits_without_trained_parameters_have_no_weight_and_no_influence(sequence, data):
    """A restricted scheme weighs the others exactly as a scheme of these alone does."""
    losses = torch.tensor(sequence)
    exits = losses.shape[1]
    trained = data.draw(st.lists(st.booleans(), min_size=exits, max_size=exits).filter(any))
    for name in ("adaloss", "annealed:steps=4", "geometric-mean", "log-barrier"):
        restricted, alone = anytime.create_scheme(name, exits), anytime.create_scheme(name, sum(trained))
        restricted.restrict(trained)
        for step in losses:
            total = restricted(step.clone().requires_grad_())
            assert total.item() == pytest.approx(alone(step[trained].requires_grad_()).item(), rel=1e-5, abs=1e-6)
            assert torch.allclose(restricted.effective[trained], alone.weights)
            assert not restricted.effective[~torch.tensor(trained)].any()


def test_a_restriction_ends():
    balance, never = anytime.AdaLoss(3), anytime.AdaLoss(3)
    balance.restrict([True, True, False])
    balance.restrict([True] * 3)
    assert torch.equal(balance(torch.tensor([4.0, 2.0, 0.1])), never(torch.tensor([4.0, 2.0, 0.1])))
    with pytest.raises(anytime.AnytimeError, match="3 losses"):
        balance.restrict([True])
