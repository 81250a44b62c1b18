"""Losses and metrics give one number per sample, whatever else is in the batch."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import anytime
from anytime import losses, metrics
from anytime.losses import MultiTask, Task, by_exit
from anytime.weights import TaskWeights

N, C, H, W, T = 5, 4, 3, 6, 7


def classes(*shape):
    targets = torch.randint(C, shape)
    if len(shape) > 1:
        targets[torch.rand(shape) < 0.2] = -100
    return targets


CASES = {
    losses.cross_entropy: lambda: (torch.randn(N, C), classes(N)),
    losses.multi_label: lambda: (torch.randn(N, C), torch.randint(2, (N, C))),
    losses.squared: lambda: (torch.randn(N, 3), torch.randn(N, 3)),
    losses.absolute: lambda: (torch.randn(N, 1), torch.randn(N)),
    losses.gaussian_nll: lambda: (torch.randn(N, 2), torch.randn(N)),
    losses.pixel_cross_entropy: lambda: (torch.randn(N, C, H, W), classes(N, H, W)),
    losses.token_cross_entropy: lambda: (torch.randn(N, T, C), classes(N, T)),
    losses.next_token: lambda: (torch.randn(N, T, C), classes(N, T)),
    metrics.error: lambda: (torch.randn(N, C), classes(N)),
    metrics.multi_label_error: lambda: (torch.randn(N, C), torch.randint(2, (N, C))),
    metrics.pixel_error: lambda: (torch.randn(N, C, H, W), classes(N, H, W)),
    metrics.iou_error: lambda: (torch.randn(N, C, H, W), classes(N, H, W)),
    metrics.token_error: lambda: (torch.randn(N, T, C), classes(N, T)),
    metrics.next_token_error: lambda: (torch.randn(N, T, C), classes(N, T)),
}


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_a_sample_has_the_number_it_has_alone(function):
    outputs, targets = CASES[function]()
    together = function(outputs, targets)
    assert together.shape == (N,)
    alone = torch.cat([function(outputs[i : i + 1], targets[i : i + 1]) for i in range(N)])
    assert torch.allclose(together, alone, atol=1e-6)
    exits = [torch.randn_like(outputs) for _ in range(3)]
    each = torch.stack([function(o, targets) for o in exits])
    assert torch.equal(by_exit(function, exits, targets), each)  # all exits in one pass are the same, bit for bit


@pytest.mark.parametrize("name", ["pixel_cross_entropy", "token_cross_entropy", "next_token"])
def test_what_is_ignored_does_not_count(name):
    function = getattr(losses, name)
    outputs, targets = CASES[function]()
    changed = outputs.clone()
    where = targets == -100
    if name == "pixel_cross_entropy":
        changed.movedim(1, -1)[where] = 1e3
    elif name == "token_cross_entropy":
        changed[where] = 1e3
    else:  # the output before a token is about that token
        changed[:, :-1][where[:, 1:]] = 1e3
    assert torch.equal(function(outputs, targets), function(changed, targets))
    assert torch.equal(function(outputs, torch.full_like(targets, -100)), torch.zeros(N))


def test_known_values():
    logits, tokens = torch.randn(N, T, C), torch.randint(C, (N, T))
    own = torch.stack([F.cross_entropy(logits[i, :-1], tokens[i, 1:]) for i in range(N)])
    assert torch.allclose(losses.next_token(logits, tokens), own)
    mean, log_variance, y = torch.randn(3, N, 2).unbind()
    own = F.gaussian_nll_loss(mean, y, log_variance.exp(), reduction="none").mean(1)
    assert torch.allclose(losses.gaussian_nll(torch.cat([mean, log_variance], 1), y), own, atol=1e-5)
    perfect = F.one_hot(tokens % 3, C).float()
    assert metrics.token_error(perfect, tokens % 3).sum() == 0
    pixels = torch.randint(3, (N, H, W))
    assert torch.allclose(metrics.iou_error(F.one_hot(pixels, C).movedim(-1, 1).float(), pixels), torch.zeros(N))


def test_one_hot_targets_may_be_integers():
    outputs, classes = torch.randn(N, C), torch.randint(C, (N,))
    for one_hot in (F.one_hot(classes, C), F.one_hot(classes, C).bool(), F.one_hot(classes, C).double()):
        assert torch.allclose(losses.cross_entropy(outputs, one_hot), losses.cross_entropy(outputs, classes))


def test_wrong_shapes_say_what_fits():
    for function, targets, says in (
        (losses.cross_entropy, torch.zeros(N, T), "token_cross_entropy"),
        (losses.squared, torch.zeros(N, 2), "as many targets as outputs"),
        (losses.token_cross_entropy, torch.zeros(N), "N × T × C"),
    ):
        with pytest.raises(anytime.AnytimeError, match=says):
            function(torch.zeros(N, T, C), targets)
    for wrong in (lambda *_: torch.zeros(3), lambda *_: 0.5):
        with pytest.raises(anytime.AnytimeError, match="one number per sample"):
            by_exit(wrong, [torch.zeros(N, C)], torch.zeros(N))
    with pytest.raises(anytime.AnytimeError, match="the task needs 'age'"):
        Task(losses.squared, slice(0, 1), "age")(torch.zeros(N, C), {"name": torch.zeros(N)})


def test_a_mean_and_more_than_one_number_per_sample_are_taken_too():
    outputs, targets = torch.randn(N, 3), torch.randn(N, 3)
    mean = by_exit(torch.nn.MSELoss(), [outputs], targets)
    each = by_exit(torch.nn.MSELoss(reduction="none"), [outputs], targets)
    assert torch.allclose(each.mean(), mean.mean())
    assert torch.allclose(each[0], losses.squared(outputs, targets))


sizes = st.integers(1, 4)


@settings(max_examples=1000)
@given(sizes, sizes, st.sampled_from(["adaloss", "adaloss:gamma=0", "const", "linear", "geometric-mean"]), st.data())
def test_the_objective_does_not_depend_on_the_units_of_the_tasks(exits, tasks, scheme, draw):
    """Scaling the losses of any task by any power of two changes no update, bit for bit, over several steps."""
    scales = torch.tensor(draw.draw(st.lists(st.integers(-40, 40), min_size=tasks, max_size=tasks))).double().exp2()
    seed = draw.draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    one, other = TaskWeights(exits, tasks, scheme), TaskWeights(exits, tasks, scheme)
    for _ in range(4):
        values = torch.rand(exits, tasks, generator=generator) + 0.01
        losses_one, losses_other = values.clone().requires_grad_(), values.clone().requires_grad_()
        objectives = one(losses_one), other(losses_other * scales.float())
        for objective in objectives:
            objective.backward()
        assert torch.equal(*objectives)
        assert torch.equal(losses_one.grad, losses_other.grad)
        assert torch.equal(one.weights, other.weights)


@settings(max_examples=1000)
@given(sizes, sizes, st.data())
def test_without_gamma_each_exit_of_each_task_may_have_its_own_unit(exits, tasks, draw):
    """The direction of the update is the same if every one of the L × T losses is scaled as it likes."""
    count = exits * tasks
    powers = draw.draw(st.lists(st.integers(-20, 20), min_size=count, max_size=count))
    scales = torch.tensor(powers).double().exp2().float().view(exits, tasks)
    generator = torch.Generator().manual_seed(draw.draw(st.integers(0, 2**31)))
    one, other = (TaskWeights(exits, tasks, "adaloss:gamma=0") for _ in range(2))
    for _ in range(3):
        values = torch.rand(exits, tasks, generator=generator) + 0.01
        a, b = values.clone().requires_grad_(), values.clone().requires_grad_()
        one(a).backward()
        other(b * scales).backward()
        assert torch.allclose(a.grad / a.grad.norm(), b.grad / b.grad.norm(), atol=1e-5)


def test_several_tasks_are_trained_and_weighed_by_exit_and_task():
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    targets = {"sign": (x[:, 0] > 0).long(), "size": 1000 * x[:, 1]}
    stages = [torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh()), torch.nn.Linear(32, 32)]
    net = anytime.AnytimeNetwork(stages, [torch.nn.Linear(32, 3), torch.nn.Linear(32, 3)])
    sign, size = (losses.cross_entropy, slice(0, 2), "sign"), (losses.squared, slice(2, 3), "size")
    loss = MultiTask(Task(*sign), Task(*size))
    batches = [(x[i : i + 16], {name: t[i : i + 16] for name, t in targets.items()}) for i in range(0, 64, 16)]
    options = {"loss": loss, "validation": batches, "epochs": 30, "lr": 0.01, "optimizer": "adamw", "show": False}
    result = anytime.fit(net, batches, "adaloss", **options)
    assert len(result.history[-1]["weights"]) == 4
    wrong = anytime.evaluate(net, batches, metric=Task(metrics.error, slice(0, 2), "sign")).errors
    assert wrong[-1] < 0.1
    for scheme, trained in (("linear", 2), ("opt-1", 1)):
        record = anytime.fit(net, batches, scheme, **{**options, "epochs": 1}).history[0]
        assert sum(loss is not None for loss in record["train"]["losses"]) == trained
    with pytest.raises(anytime.AnytimeError, match="final_extra"):
        TaskWeights(2, 2, "adaloss:final_extra=1")
