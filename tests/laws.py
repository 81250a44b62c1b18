"""The laws that every weight scheme and every anytime network must obey."""

import copy
import itertools
import tempfile

import torch
from torch import nn

import anytime
from anytime.cost import counting
from anytime.network import clone_tensors, tensors_of


def prefix_law(net, x):
    """An exit of ``steps(x)`` equals that of ``forward(x)``, and nothing deeper has run when it is out."""
    net.eval()
    started = []
    first_used = {module: i for i, stage in reversed(list(enumerate(net.stages))) for module in stage.modules()}
    hooks = [module.register_forward_pre_hook(lambda *_, i=i: started.append(i)) for module, i in first_used.items()]
    try:
        with torch.no_grad():
            whole = net(x)
            assert len(whole) == net.exits
            for taken in range(1, net.exits + 1):
                started.clear()
                steps = list(itertools.islice(net.steps(x), taken))
                assert max(started) == taken - 1
            for i, step in enumerate(steps):
                assert step.exit == i
                assert torch.equal(step.logits, whole[i])
    finally:
        for hook in hooks:
            hook.remove()


def skipping_law(net, x, only):
    """Exits that are not wanted do not run, and the others are what they were."""
    net.eval()
    ran = []
    hooks = [head.register_forward_hook(lambda *_, i=i: ran.append(i)) for i, head in enumerate(net.heads)]
    try:
        with torch.no_grad():
            some = net(x, only)
    finally:
        for hook in hooks:
            hook.remove()
    wanted = sorted({i % net.exits for i in only})
    assert ran == wanted
    with torch.no_grad():
        whole = net(x)
    assert all(torch.equal(logits, whole[i]) for i, logits in zip(wanted, some, strict=True))


def save_law(net, x):
    """What is loaded answers as what was saved."""
    net.eval()
    with tempfile.TemporaryDirectory() as folder:
        again = anytime.load(anytime.save(net, folder))
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(net(x), again(x), strict=True))


def cost_law(net, x):
    """Costs rise from exit to exit and end at the whole network's parameters."""
    cost = anytime.costs(net, x)
    assert len(cost.macs) == len(cost.params) == net.exits
    assert all(a < b for a, b in itertools.pairwise(cost.macs))
    assert all(a < b for a, b in itertools.pairwise(cost.params))
    assert cost.params[-1] == sum(p.numel() for p in net.parameters())


def gradient_law(net, scheme, x):
    """Every parameter gets a gradient, unless the scheme leaves exits out: then those have none at all."""
    net.train()
    labels = torch.randint(net(x)[0].shape[-1], (len(x),))
    only = getattr(scheme, "only", None)
    losses = torch.stack([nn.functional.cross_entropy(z, labels) for z in net(x, only)])
    if only is not None:
        losses = losses.new_zeros(net.exits).index_copy(0, torch.tensor(only), losses)
    scheme(losses).backward()
    deepest = net.exits - 1 if only is None else max(only)
    for i, stage in enumerate(net.stages):
        assert all((p.grad is not None) == (i <= deepest) for p in stage.parameters())
    for i, head in enumerate(net.heads):
        assert all((p.grad is not None) == (only is None or i in only) for p in head.parameters())


def evaluation_law(scheme, losses):
    """In eval mode and without gradients a scheme observes nothing, and gives the value it would give in training."""
    scheme(losses)
    before = copy.deepcopy(scheme.state_dict())
    value = copy.deepcopy(scheme)(losses)
    scheme.eval()
    assert torch.equal(scheme(losses), value)
    scheme(losses.flip(0) * 3)
    scheme.train()
    for without_gradients in (torch.no_grad, torch.inference_mode):
        with without_gradients():
            scheme(losses.flip(0) * 3)
    assert all(torch.equal(before[name], after) for name, after in scheme.state_dict().items())


def precision_law(scheme, losses):
    """A scheme's numbers keep their precision whatever happens to the module that contains it."""
    plain, inside = copy.deepcopy(scheme), nn.Sequential(scheme)
    for change in (nn.Module.half, nn.Module.bfloat16, nn.Module.double, lambda m: m.to(torch.float16)):
        change(inside)
        for _ in range(100):
            assert torch.equal(scheme(losses), plain(losses))
    before = plain.state_dict()
    for name, tensor in scheme.state_dict().items():
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor, before[name])
    assert {tensor.device.type for tensor in inside.to("meta").state_dict().values()} == {"meta"}
    inside.to_empty(device="cpu").load_state_dict({f"0.{name}": tensor for name, tensor in before.items()})
    assert torch.equal(scheme(losses), plain(losses))


def narrowing_law(net, x):
    """Samples taken out of the batch on the way leave the others' answers as they were."""
    with torch.no_grad():
        whole = net(x)
        inside = torch.arange(len(whole[0]))
        walk = net.walk(x)
        head = next(walk)
        for exit in range(net.exits):
            while head is None:
                head = next(walk)
            torch.testing.assert_close(head(), whole[exit][inside], atol=1e-5, rtol=1e-5)
            if exit + 1 < net.exits:
                rows = torch.arange(len(inside))[1:] if len(inside) > 2 else None
                inside = inside if rows is None else inside[rows]
                head = walk.send(rows)
        assert len(inside) < len(whole[0])


def has_channels_last(tensor):
    return tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def joining_law(net, x, sizes=(1, 2, 1)):
    """Batches that are joined and divided at every stage answer as they do alone; ``take`` after ``join`` gives them
    back, with their layout in memory."""
    parts, first = [], 0
    for size in sizes:
        parts.append(net.take(x, torch.arange(first, first + size)))
        first += size
    with torch.no_grad():
        alone = [net(clone_tensors(part)) for part in parts]
        for stage, exit in enumerate(net.stage_exits):
            joined = net.join(parts)
            ends = list(itertools.accumulate(sizes))
            back = [net.take(joined, torch.arange(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
            for before, after in zip(parts, back, strict=True):
                for a, b in zip(tensors_of(before), tensors_of(after), strict=True):
                    assert torch.equal(a, b)
                    assert not has_channels_last(a) or has_channels_last(b)
            state = net.run_stage(stage, joined)
            reached = net.exit_after(stage, state)
            assert (reached is None) == (exit is None)
            if reached is not None:
                expected = torch.cat([logits[exit] for logits in alone])
                torch.testing.assert_close(reached(), expected, atol=1e-5, rtol=1e-5)
            parts = [net.take(state, torch.arange(end - size, end)) for end, size in zip(ends, sizes, strict=True)]


def own_logits(model, x):
    output = model(**x) if isinstance(x, dict) else model(x)
    return output if isinstance(output, torch.Tensor) else output.logits


def rows(x, which):
    return {key: value[which] for key, value in x.items()} if isinstance(x, dict) else x[which]


def conversion_law(model, x, net):
    """What every conversion must keep."""
    with torch.no_grad():
        assert torch.equal(net(x)[-1], own_logits(model, x)), "the last exit is the model"
        one = rows(x, slice(0, 1))
        torch.testing.assert_close(net(one)[-1], own_logits(model, one), atol=1e-4, rtol=1e-3)
        started = []
        for i, stage in enumerate(net.stages):
            stage.register_forward_pre_hook(lambda *_, i=i: started.append(i))
        for step in net.steps(x):
            assert started[-1] == step.exit, "a deeper stage has run"
        if net.paused_because is None:
            narrowing_law(net, rows(x, torch.tensor([0, 1, 0, 1])))
            joining_law(net, rows(x, torch.tensor([0, 1, 0, 1])))
    cost = anytime.costs(net, x)
    with counting() as counter:
        own_logits(model, x)
    assert cost.macs[-1] == counter.get_total_flops() // 2 + sum(cost.heads)
    assert cost.params[-1] <= sum(p.numel() for p in net.parameters()), "some have parameters that they never use"
    assert cost.macs == sorted(set(cost.macs))
