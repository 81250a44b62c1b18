import itertools
import random
import threading
import time

import laws
import pytest
import torch
from forge import forge_weights
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import anytime
from anytime import EANN


def small(widths=(6, 6, 6), exits=3, seed=0):
    """An anytime network of linear layers: fast, and dearer with every width."""
    torch.manual_seed(seed)
    stages = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in itertools.pairwise((5, *widths))]
    return anytime.AnytimeNetwork(stages[:exits], [nn.Linear(width, 4) for width in widths[:exits]]).eval()


def ensemble(example=True):
    nets = [small((9,) * 4, 4, 1), small((6,) * 2, 2, 2), small((13,) * 5, 5, 3)]
    return EANN(nets, torch.zeros(1, 5) if example else None).eval()


X = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(4, (40,), generator=torch.Generator().manual_seed(1))


def test_networks_run_in_the_order_of_their_costs():
    eann = ensemble()
    assert eann.order == [1, 0, 2]
    assert eann.exits == 11
    members = [eann.members[member](X) for member in eann.order]
    for ours, theirs in zip(eann(X), itertools.chain(*members), strict=True):
        assert torch.equal(ours, theirs)
    macs = [anytime.costs(member, X[:1]).macs[-1] for member in eann.members]
    assert anytime.costs(eann, X[:1]).macs[-1] == sum(macs)


def test_the_order_of_images_networks_needs_no_example():
    nets = [anytime.create_model(f"resann-{n}-8", in_channels=1) for n in (3, 1, 2)]
    assert EANN(nets).order == [1, 2, 0]


@pytest.mark.parametrize("size", [None, 8])
def test_without_images_the_order_is_that_given(size):
    """An image can be made up for networks that say its size and begin with a convolution, for no others."""
    nets = [small((9,) * 4, 4, 1), small((6,) * 2, 2, 2)]
    for net in nets:
        net.image_size = size
    assert EANN(nets).order == [0, 1]


def test_convolutions_without_a_size_of_images_give_the_order_given():
    nets = [anytime.create_model(f"resann-{n}-8", in_channels=1) for n in (2, 1)]
    for net in nets:
        net.image_size = None
    assert EANN(nets).order == [0, 1]


@pytest.mark.parametrize("fitted", [False, True])
def test_an_ensemble_is_an_anytime_network(fitted):
    eann = ensemble()
    if fitted:
        eann.fit_order([(X, LABELS)])
        assert 1 < eann.exits < 11
    laws.skipping_law(eann, X, [0, -1])
    laws.narrowing_law(eann, X)
    cost = anytime.costs(eann, X[:1])
    assert len(cost.macs) == eann.exits
    assert all(a < b for a, b in itertools.pairwise(cost.macs))
    whole = eann(X)
    for taken in range(1, eann.exits + 1):
        steps = list(itertools.islice(eann.steps(X), taken))
        assert all(torch.equal(step.logits, whole[step.exit]) for step in steps)
        assert torch.equal(anytime.predict(eann, X, exits=taken).logits, whole[taken - 1])
        assert anytime.predict(eann, X, macs=cost.alone[taken - 1] * len(X)).exit == taken - 1
    assert len(anytime.profile(eann, X, repeats=2).through) == eann.exits


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 60))
def test_offered_errors_fall_strictly_and_the_last_is_the_best(seed, samples):
    draw = torch.Generator().manual_seed(seed)
    eann, x = ensemble(), torch.randn(samples, 5, generator=draw)
    labels = torch.randint(4, (samples,), generator=draw)
    everything = list(eann.offered)
    errors = eann.fit_order(zip(x.split(7), labels.split(7), strict=True))  # gone through once
    assert errors == [(logits.argmax(1) != labels).double().mean().item() for logits in ensemble()(x)]
    offered = [errors[everything.index(exit)] for exit in eann.offered]
    assert all(a > b for a, b in itertools.pairwise(offered))
    assert offered[-1] == min(errors)
    assert eann.offered[0] == everything[0]


def test_an_ensemble_of_many_networks_is_built_in_linear_time():
    """In CPU time of this thread: 0.4 s, and about 15 s with quadratic time."""
    nets = [anytime.AnytimeNetwork([nn.Identity()], [nn.Identity()]) for _ in range(10_000)]
    begun = time.thread_time()
    eann = EANN(nets).eval()
    assert len(eann.units) == eann.exits == 10_000
    eann.offered = eann.offered[::2]
    assert sum(1 for _ in eann.walk(X)) == 5_000
    assert time.thread_time() - begun < 4


def test_what_is_not_offered_does_not_run():
    eann = ensemble()
    eann.fit_order([(X, LABELS)])
    ran = []
    for m, member in enumerate(eann.members):
        for i, (stage, head) in enumerate(member.units):
            stage.register_forward_hook(lambda *_, at=(m, i, "stage"): ran.append(at))
            head.register_forward_hook(lambda *_, at=(m, i, "head"): ran.append(at))
    eann(X)
    assert [(m, i) for m, i, kind in ran if kind == "head"] == eann.offered
    for member in range(3):
        last = max((exit for m, exit in eann.offered if m == member), default=-1)
        assert [i for m, i, kind in ran if kind == "stage" and m == member] == list(range(last + 1))


def test_fitting_again_forgets_what_was_counted():
    eann = ensemble()
    anytime.profile(eann, X, repeats=1)
    assert anytime.predict(eann, X).macs == 40 * anytime.costs(eann, X[:1]).macs[-1] - sum(
        40 * heads for heads in anytime.costs(eann, X[:1]).heads[:-1]
    )
    eann.fit_order([(X, LABELS)])
    prediction = anytime.predict(eann, X, deadline=60.0)
    assert (prediction.exit, prediction.complete) == (eann.exits - 1, True)
    assert prediction.macs == 40 * anytime.costs(eann, X[:1]).alone[-1]


def test_a_failed_fit_leaves_the_order_as_it_was():
    eann = ensemble()
    eann.fit_order([(X, LABELS)])
    before = list(eann.offered)
    for bad in ([], [X], [(X[:0], LABELS[:0])], [(X, LABELS + 9)], [(X, LABELS), (X[:, :2], LABELS)]):
        with pytest.raises((anytime.AnytimeError, RuntimeError)):
            eann.fit_order(bad)
        assert eann.offered == before


def test_saved_with_its_order(tmp_path):
    data = anytime.load_data("digits")
    eann = EANN([anytime.create_model(f"resann-{n}-4", in_channels=1) for n in (2, 1)]).eval()
    eann.fit_order(data.batches(data.validation))
    eann.preprocessing = data.preprocessing
    again = anytime.load(anytime.save(eann, tmp_path))
    assert isinstance(again, EANN)
    assert again.offered == eann.offered
    assert again.preprocessing == data.preprocessing
    x = data.normalize(data.test.pixels[:8])
    with torch.inference_mode():
        assert all(torch.equal(a, b) for a, b in zip(eann(x), again(x), strict=True))
    unfitted = anytime.load(anytime.save(EANN(list(eann.members)), tmp_path))
    assert unfitted.exits == 9


@pytest.mark.parametrize("offered", [[[0, 99]], [[7, 0]], [[0, 1], [0, 0]]])
def test_a_damaged_order_is_refused(tmp_path, offered):
    anytime.save(EANN([anytime.create_model(f"resann-{n}-4") for n in (1, 2)]), tmp_path)
    forge_weights(tmp_path, lambda tensors: tensors.update(_extra_state=torch.tensor(offered)))
    with pytest.raises(anytime.AnytimeError, match="offered"):
        anytime.load(tmp_path)


def test_samples_leave_an_ensemble_early():
    eann = ensemble()
    eann.fit_order([(X, LABELS)])
    spent = anytime.costs(eann, X[:1]).macs
    policy = anytime.calibrate(eann, [(X, LABELS)], (spent[0] + spent[-1]) / 2)
    answers = policy.predict(eann, X)
    with torch.inference_mode():
        whole = torch.stack(eann(X))
    assert len(set(answers.exits.tolist())) > 1
    torch.testing.assert_close(answers.logits, whole[answers.exits, torch.arange(40)], atol=1e-5, rtol=1e-5)


def test_networks_for_other_classes_are_told_apart():
    other = anytime.AnytimeNetwork([nn.Linear(5, 3)], [nn.Linear(3, 7)])
    with pytest.raises(anytime.AnytimeError, match=r"\(40, 4\), \(40, 7\)"):
        EANN([small(), other]).fit_order([(X, LABELS)])


def test_a_walk_keeps_to_the_order_that_it_began_with():
    eann = ensemble()
    steps = eann.steps(X)
    next(steps)
    eann.offered = [(1, 0)]
    assert len(list(steps)) == 10


class After:
    """A stop that is set once it was asked so many times."""

    def __init__(self, asked):
        self.left = asked

    def is_set(self):
        self.left -= 1
        return self.left < 0


def test_ten_thousand_interruptions():
    """Whenever it is stopped, the answer is that of the best offered exit reached by then."""
    eann, threads = ensemble(), threading.active_count()
    eann.fit_order([(X, LABELS)])
    heads = [head is not None for _, head in eann.units]
    draw, x = random.Random(0), X[:1]
    whole = eann(x)
    answered = set()
    for _ in range(8_000):  # between any two stages
        stages = draw.randrange(len(heads) + 2)
        reached = sum(heads[:stages])
        try:
            prediction = anytime.predict(eann, x, stop=After(stages))
            assert prediction.exit == (reached - 1 if stages <= len(heads) else eann.exits - 1)
            assert torch.equal(prediction.logits, whole[prediction.exit])
            answered.add(prediction.exit)
        except anytime.UnfinishedError:
            assert reached == 0
    opened = []
    for exit, head in enumerate(eann.heads):
        head.register_forward_hook(lambda *_, exit=exit: opened.append(exit))
    for _ in range(2_000):  # at any moment of the clock
        opened.clear()
        run = anytime.start(eann, x)
        time.sleep(draw.random() * 0.001)
        seen = run.latest()
        run.stop()
        best = run.latest()
        assert (best.exit if best else -1) == max(opened, default=-1)
        assert best is None or torch.equal(best.logits, whole[best.exit])
        assert seen is None or seen.exit <= best.exit
        answered.add(best.exit if best else -1)
    assert set(range(eann.exits)) <= answered
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("base", "ends", "names"),
    [
        (1000, ("resann-1-16", "resann-9-16"), ["resann-1-16", "resann-9-16"]),
        (2, ("resann-3-16", "resann-3-16"), ["resann-3-16"]),
    ],
)
def test_plans(base, ends, names):
    assert EANN.plan(*ends, base=base) == names


@given(st.integers(1, 3), st.integers(1, 5), st.floats(1.3, 4))
@settings(max_examples=4, deadline=None)
def test_planned_costs_grow_by_no_more_than_the_base(smallest, more, base):
    names = EANN.plan(f"resann-{smallest}-8", f"resann-{smallest + more}-8", base)
    x = torch.empty(1, 3, 32, 32, device="meta")
    macs = {
        n: anytime.costs(anytime.create_model(f"resann-{n}-8"), x).macs[-1]
        for n in range(smallest, smallest + more + 1)
    }
    chosen = [int(name.split("-")[1]) for name in names]
    for small, large in itertools.pairwise(chosen):
        assert macs[large] <= base * macs[small] or large == small + 1  # no network lies between


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: EANN([]), "at least one"),
        (lambda: EANN([nn.Linear(2, 2)]), "anytime.convert"),
        (lambda: EANN(["resann-1-8"]), "not an anytime network"),
        (lambda: EANN([ensemble(), small()]), "the networks"),
        (lambda: EANN([*ensemble().members, ensemble().members[0]] * 2), "twice"),
        (lambda: setattr(ensemble(), "offered", [(5, 0)]), "there is no exit 0 of network 5"),
        (lambda: setattr(ensemble(), "offered", []), "order"),
        (lambda: ensemble().offer({}), "at least one sample"),
        (lambda: EANN.plan("resann-9-16", "resann-3-16"), "smaller first"),
        (lambda: EANN.plan("resann-3-16", "resann-9-32"), "one width"),
        (lambda: EANN.plan("resann-3-16", "resann-9-16", base=1), "above 1"),
        (lambda: anytime.Team(small()), "expected an EANN"),
        (lambda: anytime.Team(ensemble().train()), "eval"),
        (lambda: anytime.Team(ensemble(), workers=0), ">= 1"),
        (lambda: anytime.Team(ensemble(), threads=0), ">= 1"),
    ],
)
def test_errors_say_what_to_do(call, said):
    with pytest.raises(anytime.AnytimeError, match=said):
        call()


def test_batches_of_converted_members_are_joined():
    def member(width):
        blocks = [nn.Sequential(nn.Linear(4, width), nn.ReLU(inplace=True), nn.Linear(width, 4)) for _ in range(2)]
        return anytime.convert(nn.Sequential(*blocks, nn.Linear(4, 3)).eval(), torch.randn(2, 4), exits=["0"])

    torch.manual_seed(0)
    eann = anytime.EANN([member(4), member(8)], example=torch.randn(1, 4)).eval()
    laws.joining_law(eann, torch.randn(4, 4))


@pytest.mark.parametrize("form", ["pairs", "arrays", "dicts"])
def test_the_order_is_that_of_costs_for_batches_of_any_form(form):
    batch = {
        "pairs": (X, LABELS),
        "arrays": (X.double().numpy(), LABELS.numpy()),
        "dicts": {"x": X, "labels": LABELS},
    }[form]
    eann = ensemble(example=False)
    eann.fit_order([batch])
    costs = [anytime.costs(eann.members[member], X[:1]).macs[-1] for member in eann.order]
    assert costs == sorted(costs)
