"""What an engine serves: folders whose files say nonsense, and networks of 16 bits."""

import json

import pytest
import torch
from torch import nn

import anytime
from anytime.files import write_json
from anytime.inference.batch_times import FILE, measure_batches, read_batch_times
from anytime.measuring import kind_of
from anytime.serving.engine import OverloadedError
from anytime.serving.model import saved_accuracy

X = torch.zeros(1, 3, 32, 32)


@pytest.mark.parametrize("error", [10**400, -1, 2, None, "0.5", float("nan"), [0.5]])
def test_an_evaluation_that_is_no_share_of_errors_is_not_used(tmp_path, error):
    (tmp_path / "evaluation.json").write_text(json.dumps({"errors": [0.5, 0.25, error]}))
    assert saved_accuracy(tmp_path, 3) is None
    (tmp_path / "evaluation.json").write_text(json.dumps({"errors": [0.5, 0.25, 0]}))
    assert saved_accuracy(tmp_path, 3) == [0.5, 0.75, 1]


@pytest.mark.parametrize("head", [[], [1], [1, 2, 3], 5, [10**400, 0], [-1, 0]])
def test_times_that_are_no_lines_are_refused(tmp_path, head):
    kind = kind_of(X)
    entry = {**kind._asdict(), "stages": [[0, 1]], "heads": [head]}
    write_json(tmp_path / FILE, {"times": [entry]}, sealed=True)
    with pytest.raises(anytime.AnytimeError, match="delete it, and it is measured again"):
        read_batch_times(tmp_path)
    write_json(tmp_path / FILE, {"times": [{**entry, "heads": [None]}]}, sealed=True)
    assert read_batch_times(tmp_path)[0].heads == [None]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_network_of_16_bits_is_served_as_it_is(dtype):
    small = nn.Conv2d(3, 2, 1), nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3))
    net = anytime.AnytimeNetwork(small[:1], small[1:]).eval().to(dtype)
    net.image_size, net.in_channels = 4, 3
    x = torch.randn(1, 3, 4, 4)
    with anytime.Engine(net, processes=0, max_batch=1) as engine:
        answer = engine.submit(x.to(dtype), deadline=60.0).result()
        with pytest.raises(anytime.AnytimeError, match="float32"):
            engine.submit(x, deadline=60.0)
    with torch.inference_mode():
        assert torch.equal(answer.logits, net(x.to(dtype))[0].float())


@pytest.mark.parametrize("ask", [anytime.predict, lambda net, x: measure_batches(net, x, [1])])
def test_complex_inputs_are_refused_with_a_reason(ask):
    with pytest.raises(anytime.AnytimeError, match=r"complex64.*x\.real"):
        ask(anytime.create_model("resann-1-8").eval(), X.to(torch.complex64))


def test_times_of_a_busy_moment_are_measured_again_at_the_next_start(tmp_path):
    net = anytime.create_model("resann-1-8").eval()
    anytime.save(net, tmp_path)
    example = torch.zeros(1, 3, 32, 32)
    measure_batches(net, example, batches=(1, 2), repeats=2).scaled(1e4).save(tmp_path)
    poisoned = read_batch_times(tmp_path)[0]
    with anytime.Engine(tmp_path, example=example, threads=torch.get_num_threads(), spare=False) as engine:
        assert engine.submit(example, deadline=60.0).result(60).complete
        assert engine.times.stages[0].at(1) < 0.5 * poisoned.stages[0].at(1)
    assert read_batch_times(tmp_path)[0].stages[0].at(1) < 0.5 * poisoned.stages[0].at(1)


def test_an_engine_whose_times_are_far_too_long_notices_while_it_serves():
    net = anytime.create_model("resann-1-8").eval()
    example = torch.zeros(1, 3, 32, 32)
    poisoned = measure_batches(net, example, batches=(1, 2), repeats=2).scaled(1e6)
    answered, refused = [], 0
    with anytime.Engine(net, processes=0, profile=poisoned, example=example) as engine:
        for _ in range(100):
            try:
                answered.append(engine.submit(example, deadline=60.0).result(60))
            except OverloadedError:
                refused += 1
    assert len(answered) > 50
    assert 9 <= refused < 50
