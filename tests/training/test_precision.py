"""Lower precision and ``torch.compile``, on a CPU with networks of linear layers.

Convolutions in bfloat16 end some CPUs' processes with an illegal instruction, inside oneDNN.
"""

import pytest
import torch
from short_runs import linear, same, stopped, train

import anytime


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_lower_precision_learns_what_full_precision_does(precision, data):
    full, lower = linear(), linear()
    seen = []
    lower.heads[0].register_forward_hook(lambda _, __, logits: seen.append((lower.training, logits.dtype)))
    one = train(full, data, lr=0.05, epochs=4).history[-1]["train"]["losses"]
    other = train(lower, data, lr=0.05, epochs=4, precision=precision).history[-1]["train"]["losses"]
    assert {dtype for training, dtype in seen if training} == {getattr(torch, precision)}
    assert other == pytest.approx(one, rel=0.1)
    assert other != one
    assert all(parameter.dtype == torch.float32 for parameter in lower.parameters())


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_lower_precision_resumes_bit_for_bit(precision, data, tmp_path):
    whole, again = linear(), linear()
    options = {"lr": 0.01, "precision": precision}
    train(whole, data, **options)
    stopped(linear(), data, tmp_path / "run", after=3, **options)
    train(again, data, output=tmp_path / "run", resume=True, **options)
    assert same(whole, again)
    with pytest.raises(anytime.AnytimeError, match=f"was started with precision {precision}, not float32"):
        train(linear(), data, output=tmp_path / "run", lr=0.01, resume=True)


@pytest.mark.promise
@pytest.mark.parametrize("scheme", ["adaloss", "opt-1"])
def test_a_compiled_network_learns_what_the_plain_one_does(scheme, data, tmp_path):
    plain, compiled = linear(), linear()
    one = train(plain, data, scheme, lr=0.05).history[-1]["train"]["losses"]
    other = train(compiled, data, scheme, lr=0.05, compiled=True, output=tmp_path / "run").history[-1]["train"][
        "losses"
    ]
    assert other[0] == pytest.approx(one[0], rel=1e-3)
    assert same(anytime.load(tmp_path / "run", net=linear()), compiled)
    assert list(compiled.state_dict()) == list(plain.state_dict())
