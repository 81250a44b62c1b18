"""Exits that answer together: a combined network is a network like any other."""

import laws
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import outputs
from torch import nn
from torch.nn.functional import cross_entropy

import anytime
from anytime.combination.combined import RULES, CombinedNetwork
from anytime.combination.ensemble import Ensemble
from anytime.combination.product import Product, share_getting_worse
from anytime.combination.stacking import PRIOR, Stacking
from anytime.evaluation import collect
from experiments.caching import Caching

INPUTS = st.none() | st.lists(st.integers(0, 4), max_size=4)


def resann():
    torch.manual_seed(0)
    net = anytime.create_model("resann-2-8").eval()
    for module in net.modules():  # as if it had been trained, so that samples differ
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
    return net


def combined(net, rule, inputs=None):
    """Fitted, if the rule must be."""
    if rule != "stacking":
        return anytime.combine(net, rule, inputs=inputs)
    stacking = Stacking(net.exits, inputs=inputs)
    stacking.fit(outputs(0, net.exits, classes=10))
    return CombinedNetwork(net, stacking)


def answers_of(rule, own):
    """What the exits answer, from their own logits."""
    return [rule(exit, [own[i] for i in rule.heard(exit)]) for exit in range(len(own))]


FEWER = [*((rule, None) for rule in RULES), ("ensemble", [1, 3]), ("stacking", [0, 2]), ("stacking", [])]


@pytest.mark.parametrize(("rule", "inputs"), FEWER)
def test_laws_of_every_network(rule, inputs, tmp_path):
    net, x = combined(resann(), rule, inputs), torch.randn(6, 3, 32, 32)
    laws.prefix_law(net, x)
    laws.narrowing_law(net, x)
    laws.joining_law(net, x)
    laws.save_law(net, x)
    laws.cost_law(net, x[:1])
    whole = net(x)
    with torch.inference_mode():
        for exit, reached in enumerate(net.walk(x)):
            assert torch.equal(reached(), whole[exit])
    for exit in range(net.exits):
        assert torch.equal(anytime.predict(net, x, exits=exit + 1).logits, whole[exit])
    with anytime.start(net, x) as background:
        assert torch.equal(background.result().logits, whole[-1])
    policy = anytime.calibrate(net, [(x, torch.arange(6))], budget=0.7, unit="fraction")
    answers = policy.predict(net, x)
    assert torch.equal(answers.exits, policy.choose_exits(torch.stack(whole)))
    eann = anytime.EANN([combined(anytime.create_model("resann-1-8"), rule), net]).eval()
    again = anytime.load(anytime.save(eann, tmp_path))
    assert all(torch.equal(a, b) for a, b in zip(eann(x), again(x), strict=True))


def test_the_heads_on_the_way_are_part_of_the_cost():
    net, x = resann(), torch.zeros(1, 3, 32, 32)
    alone, together = anytime.costs(net, x), anytime.costs(anytime.combine(net), x)
    assert together.macs == together.alone == alone.macs
    assert alone.alone < alone.macs


@pytest.mark.parametrize("rule", ["ensemble", "stacking"])
def test_only_the_heads_of_inputs_run_on_the_way(rule):
    inner, ran = resann(), []
    for exit, head in enumerate(inner.heads):
        head.register_forward_hook(lambda *_, exit=exit: ran.append(exit))
    net = combined(inner, rule, [1, 3]).eval()
    for exit, expected in enumerate([[0], [1], [1, 2], [1, 3], [1, 3, 4], [1, 3, 5]]):
        ran.clear()
        anytime.predict(net, torch.zeros(1, 3, 32, 32), exits=exit + 1, deadline=60.0)
        assert ran == expected


def test_a_converted_network_is_combined_in_training_and_in_eval_mode():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(5, 4)
    net = anytime.convert(model, x, exits=["1", "3"])
    together = anytime.combine(net, "boosting")
    for mode in (True, False):
        together.train(mode)
        own = net(x)
        expected = [own[0]]
        for logits in own[1:]:
            expected.append(logits + 0.5 * expected[-1])
        for answer, wanted in zip(together(x), expected, strict=True):
            torch.testing.assert_close(answer, wanted)
    laws.narrowing_law(together.eval(), x)


@given(st.integers(0, 10**6), st.floats(0, 1))
def test_boosted_answers_are_sums_and_train_their_own_exit_alone(seed, share):
    draw = torch.Generator().manual_seed(seed)
    own = [torch.randn(3, 4, generator=draw, requires_grad=True) for _ in range(4)]
    answers = answers_of(RULES["boosting"](4, share=share), own)
    for n, answer in enumerate(answers):
        expected = sum(share ** (n - i) * logits for i, logits in enumerate(own[: n + 1]))
        torch.testing.assert_close(answer, expected)
        gradients = torch.autograd.grad(answer.square().sum(), own, allow_unused=True, retain_graph=True)
        assert [g is not None for g in gradients] == [i == n for i in range(4)]


@settings(max_examples=20)
@given(st.integers(0, 1000), INPUTS)
def test_fitted_weights_are_the_best(seed, inputs):
    known = outputs(seed)
    rule = Ensemble(5, inputs)
    rule.fit(known)
    draw = torch.Generator().manual_seed(seed)
    for exit, answer in enumerate(answers_of(rule, known.logits)):
        best = cross_entropy(answer, known.labels)
        assert best <= cross_entropy(known.logits[exit], known.labels) + 1e-3
        logp = known.logits[rule.heard(exit)].log_softmax(-1)
        for _ in range(5):
            other = rule.weights[exit, : len(logp)] + 0.2 * torch.randn(len(logp), generator=draw)
            assert best <= cross_entropy((other[:, None, None] * logp).sum(0), known.labels) + 1e-3


@settings(max_examples=20)
@given(st.integers(0, 1000), INPUTS)
def test_fitted_corrections_are_the_best(seed, inputs):
    known = outputs(seed)
    rule = Stacking(5, inputs=inputs)
    rule.fit(known)
    draw = torch.Generator().manual_seed(seed)
    for exit, logits in enumerate(known.logits):
        so_far = torch.cat(list(known.logits[rule.heard(exit)]), -1)
        scale = so_far.std(0, correction=0)

        def value(weights, bias, logits=logits, so_far=so_far, scale=scale):
            prior = (weights * scale[:, None]).square().sum() / (2 * PRIOR**2 * len(known.labels))
            return cross_entropy(logits + so_far @ weights + bias, known.labels) + prior

        weights, bias = rule.weights[exit, : len(scale)], rule.biases[exit]
        best = value(weights, bias)
        assert best <= cross_entropy(logits, known.labels) + 1e-6
        for _ in range(5):
            other = weights + 0.1 * torch.randn(weights.shape, generator=draw)
            assert best < value(other, bias + 0.1 * torch.randn(bias.shape, generator=draw))


@pytest.mark.parametrize("rule", ["ensemble", "stacking"])
def test_weights_that_are_fitted_are_saved(rule, tmp_path):
    net, x = resann(), torch.randn(40, 3, 32, 32)
    together = anytime.combine(net, rule, [(x, torch.randint(10, (40,)))]).eval()
    again = anytime.load(anytime.save(together, tmp_path))
    assert torch.equal(again.rule.weights, together.rule.weights)


@given(st.integers(0, 10**6), st.floats(0, 3), st.floats(1, 30))
def test_a_product_follows_its_definition(seed, power, scale):
    logits = scale * torch.randn(6, 20, 5, generator=torch.Generator().manual_seed(seed))
    powers = (torch.arange(1, 7, dtype=torch.float64)[:, None, None] / 6) ** power
    products = logits.double().exp().log1p().pow(powers).cumprod(0)
    for exit, answer in enumerate(answers_of(Product(6, power), logits)):
        expected = products[exit] / products[exit].sum(-1, keepdim=True)
        torch.testing.assert_close(answer.softmax(-1), expected.float(), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("rule", [Product, Caching])
def test_products_and_caches_get_worse_less_often(rule):
    known = outputs(3, samples=2000)
    answers = torch.stack(answers_of(rule(5), known.logits))
    assert (answers[-1].argmax(-1) == known.labels).float().mean() > 0.6
    assert share_getting_worse(answers, known.labels) < share_getting_worse(known.logits, known.labels)


def test_what_makes_no_sense_is_refused():
    net = resann()
    batches = [(torch.randn(4, 3, 32, 32), torch.zeros(4).long())]
    for call, message in [
        (lambda: anytime.combine(nn.Linear(2, 2)), "not a Linear"),
        (lambda: anytime.combine(net, "hope"), "ensemble, stacking, product, boosting"),
        (lambda: anytime.combine(net, batches), r"rule=list\(…\) must be one of ensemble, stacking, product"),
        (lambda: anytime.combine(net, None), "rule=None must be one of ensemble"),
        (lambda: anytime.combine(net, "ensemble", share=1), r"combine\(net, 'ensemble'\): ensemble takes inputs"),
        (lambda: anytime.combine(net, "product", pow=3), r"combine\(net, 'product'\): product takes power$"),
        (lambda: anytime.combine(net, "product", batches), "nothing to fit"),
        (lambda: anytime.combine(net, "stacking"), "must be fitted: add batches"),
        (lambda: anytime.combine(net, "product", power=-1), "power=-1 must be"),
        (lambda: anytime.combine(net, "ensemble", inputs=[6]), "must be exits of the network, 0 to 5"),
        (lambda: anytime.combine(net, "ensemble", inputs=-1), "inputs=-1 must be"),
    ]:
        with pytest.raises(anytime.AnytimeError, match=message):
            call()


@pytest.mark.parametrize("offered", [None, [(0, 2), (1, 5)], [(1, 0), (1, 1)]], ids=["all", "some", "of one network"])
def test_an_ensemble_is_not_combined(offered):
    """Its networks each take the input, not what the network before passes on."""
    eann = anytime.EANN([anytime.create_model("resann-1-8"), resann()])
    eann.offered = offered or eann.offered
    for ensemble in (eann, anytime.EANN([resann()])):
        with pytest.raises(anytime.AnytimeError, match="combine the members of an ensemble"):
            anytime.combine(ensemble, "product")


@pytest.mark.parametrize("outputs", [(1,), (5, 3)])
def test_outputs_that_are_no_classes_are_only_boosted(outputs):
    head = nn.Sequential(nn.Linear(4, 15), nn.Unflatten(1, (5, 3))) if len(outputs) > 1 else nn.Linear(4, 1)
    net, x = anytime.AnytimeNetwork([nn.Linear(4, 4)], [head]), torch.randn(2, 4)
    for rule in RULES:
        together = combined(net, rule)
        if rule == "boosting":
            assert together(x)[0].shape == (2, *outputs)
            continue
        for use in (together, lambda x, net=together: anytime.predict(net.eval(), x)):
            with pytest.raises(anytime.AnytimeError, match=r"of at least two classes.*boosting"):
                use(x)
    with pytest.raises(anytime.AnytimeError, match="at least two classes"):
        anytime.combine(net, "ensemble", [(x, torch.zeros(2).long())])


def test_weights_are_not_fitted_to_no_samples():
    with pytest.raises(anytime.AnytimeError, match="no samples"):
        anytime.combine(resann(), "ensemble", [(torch.zeros(0, 3, 32, 32), torch.zeros(0).long())])


def test_weights_go_to_a_rule_with_the_same_options(tmp_path):
    def network(**options):
        inner = anytime.AnytimeNetwork([nn.Linear(4, 4)], [nn.Linear(4, 3)])
        return anytime.combine(inner, "product", **options)

    anytime.save(network(power=1), tmp_path)
    anytime.load(tmp_path, network(power=1))
    with pytest.raises(anytime.AnytimeError, match=r"options \{'power': 1.0\}, but the network given has options None"):
        anytime.load(tmp_path, network())


def test_collected_outputs_are_those_of_the_combination():
    net, x = resann(), torch.randn(4, 3, 32, 32)
    together = anytime.combine(net, "product")
    assert torch.equal(collect(together, [(x, torch.zeros(4).long())]).logits, torch.stack(together(x)).detach())


@pytest.mark.parametrize(("rule", "inputs"), [*((rule, None) for rule in RULES), ("stacking", [1]), ("ensemble", [])])
def test_a_combined_network_is_exported(rule, inputs, tmp_path):
    pytest.importorskip("onnxruntime")
    net, x = anytime.create_model("resann-1-4", in_channels=1), torch.randn(3, 1, 8, 8)
    net = combined(net, rule, inputs).eval()
    exported = anytime.load_exported(anytime.export.onnx(net, x, tmp_path))
    for step, expected in zip(exported.steps(x.numpy()), net(x), strict=True):
        torch.testing.assert_close(torch.as_tensor(step.logits), expected.detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rule", ["stacking", "ensemble"])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_labels_of_any_type_of_integers(rule, kind):
    torch.manual_seed(0)
    net = anytime.AnytimeNetwork([nn.Linear(8, 8), nn.Tanh()], [nn.Linear(8, 3), nn.Linear(8, 3)]).eval()
    x, labels = torch.randn(50, 8), torch.randint(3, (50,))
    ours = anytime.combine(net, rule, [(x, labels.to(kind))]).eval()(x)
    theirs = anytime.combine(net, rule, [(x, labels)]).eval()(x)
    assert all(map(torch.equal, ours, theirs))
    policy = anytime.calibrate(net, [(x, labels.to(kind))], budget=0.9)
    assert policy == anytime.calibrate(net, [(x, labels)], budget=0.9)


@pytest.mark.parametrize("rule", RULES)
def test_networks_of_16_bits(rule):
    torch.manual_seed(0)
    net = anytime.AnytimeNetwork([nn.Linear(8, 8), nn.Tanh()], [nn.Linear(8, 3), nn.Linear(8, 3)]).eval()
    x, labels = torch.randn(50, 8), torch.randint(3, (50,))
    together = anytime.combine(net, rule, [(x, labels)] if rule in ("stacking", "ensemble") else None).eval()
    with torch.no_grad():
        exact = together(x)
        for ours, theirs in zip(together.bfloat16()(x.bfloat16()), exact, strict=True):
            torch.testing.assert_close(ours.float().softmax(-1), theirs.softmax(-1), rtol=0.1, atol=0.05)
