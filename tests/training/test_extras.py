"""Extras of a training compose: fit with all of them at once, resumed and saved."""

import pytest
import torch

import anytime


def network():
    torch.manual_seed(0)
    return anytime.create_model("resann-1-4", in_channels=1)


def trained(folder=None, net=None, scheme="adaloss", epochs=2, **options):
    net = net or network()
    data = anytime.load_data("digits").subset(96)
    options |= {"epochs": epochs, "batch_size": 32, "output": folder, "resume": True, "show": False}
    result = anytime.fit(net, data, scheme, **options)
    return net, result


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_annealing_and_boosting_compose_and_are_repeatable(tmp_path):
    nets = [trained(scheme=scheme)[0] for scheme in ("adaloss", "annealed")]
    assert not same(*nets)
    boosted, result = trained(tmp_path / "run", anytime.combine(network(), "boosting"), "annealed")
    again, _ = trained(None, anytime.combine(network(), "boosting"), "annealed")
    assert same(boosted, again)
    loaded = anytime.load(tmp_path / "run")
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(loaded(x)[-1], boosted.eval()(x)[-1])
    assert result.curve is not None


@pytest.mark.parametrize("kind", ["plain", "boosted", "converted", "frozen", "two tasks"])
def test_first_order_follows_the_gradients(kind):
    """On every kind of network; and the next training is none the wiser."""
    net = network()
    if kind == "boosted":
        net = anytime.combine(net, "boosting")
    if kind in ("converted", "frozen"):
        net = anytime.convert(torch.nn.Sequential(*net.stages, net.heads[-1]), torch.zeros(1, 1, 8, 8), exits=3)
    if kind == "frozen":
        net.freeze()
    loss = entropy = anytime.losses.cross_entropy
    if kind == "two tasks":
        loss = anytime.losses.MultiTask(entropy, lambda outputs, targets: entropy(2 * outputs, targets))
    _, result = trained(net=net, scheme="first-order", loss=loss)
    weights = result.history[-1]["weights"]
    assert len(weights) == 6 if kind == "two tasks" else 3
    assert max(weights) == 1
    assert min(weights) < 1
    trained(net=net)


def test_annealing_lasts_as_long_as_the_training():
    """96 images in batches of 32 for 2 epochs are 6 steps, 12 calls if each batch has two parts."""
    for accumulate in (1, 2):
        balance = anytime.weights.AnnealedAdaLoss(3)
        trained(scheme=balance, accumulate=accumulate)
        assert balance.steps == balance.calls == 6 * accumulate
    _, result = trained(scheme="annealed")
    first, last = (record["weights"] for record in result.history)
    assert min(first) > min(last)
    batches = Unsized([(torch.randn(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64))])
    with pytest.raises(anytime.AnytimeError, match="no length"):
        anytime.fit(network(), batches, "annealed", epochs=1, show=False)


def test_annealing_begins_again_with_each_training():
    balance = anytime.weights.AnnealedAdaLoss(3)
    for epochs in (2, 4):
        result = trained(scheme=balance, epochs=epochs)[1]
        assert balance.steps == balance.calls == 3 * epochs
        assert min(result.history[0]["weights"]) > min(result.history[-1]["weights"])
    given = anytime.weights.AnnealedAdaLoss(3, steps=4)
    trained(scheme=given)
    trained(scheme=given)
    assert (given.steps, given.calls) == (4, 12), "a number of steps that was given counts from the first call on"


class Interrupted(Exception):
    """A training is stopped from outside."""


@pytest.mark.parametrize("again", [False, True])
def test_annealing_goes_on_where_a_training_was_interrupted(tmp_path, again):
    """By the same scheme, or by another one as in a new process."""
    steps = []

    def interrupt(step):
        steps.append(step)
        if len(steps) == 4:
            raise Interrupted

    whole, _ = trained(scheme="annealed")
    balance = anytime.weights.AnnealedAdaLoss(3)
    with pytest.raises(Interrupted):
        trained(tmp_path / "run", scheme=balance, checkpoint_seconds=0, on_step=interrupt)
    balance = balance if again else anytime.weights.AnnealedAdaLoss(3)
    resumed, _ = trained(tmp_path / "run", scheme=balance)
    assert same(resumed, whole)
    assert balance.calls == 6


class Unsized:
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(anytime.AnytimeError, match="compiled=True does not allow"):
        trained(scheme="first-order", compiled=True)
