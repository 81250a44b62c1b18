"""Mistakes in what users bring to ``fit`` are told in one sentence that names the fix."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anytime

X, Y = torch.randn(20, 8, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3


def network(outputs=3):
    return anytime.AnytimeNetwork([nn.Linear(8, 8) for _ in range(2)], [nn.Linear(8, outputs) for _ in range(2)])


def fit(batches, outputs=3, **options):
    return anytime.fit(network(outputs), batches, epochs=1, lr=0.01, show=False, **options)


def loader(*tensors, **options):
    return DataLoader(TensorDataset(*tensors), **{"batch_size": 8, **options})


MISTAKES = {
    "an empty list": ([], {}, r"no batches in epoch 1: pass at least one"),
    "an empty loader": (loader(X, Y, batch_size=32, drop_last=True), {}, "batch_size and drop_last"),
    "a data set": (TensorDataset(X, Y), {}, r"DataLoader\(dataset, batch_size=32\)"),
    "float classes": (loader(X, Y.float()), {}, r"targets.long\(\); for numbers to predict use anytime.losses.squared"),
    "too many classes": (loader(X, Y + 5), {}, "from 5 to 7, and the network has 3 outputs"),
    "a list of classes": ([(X, Y.tolist())], {}, r"targets in a list; .* torch.tensor\(targets\)"),
    "too few targets": ([(X, Y[:5])], {}, r"outputs of shape \(20, 3\) and targets \(5,\)"),
    "a column of classes": (
        loader(X, Y[:, None]),
        {},
        r"targets \(8, 1\); it takes logits N × C",
    ),
    "a size of batches": (loader(X, Y), {"batch_size": 8}, "is for an anytime.Data; set it in the DataLoader"),
    "a name for a loss": (loader(X, Y), {"loss": "mse"}, r"loss='mse': expected a function of \(outputs, targets\)"),
    "a name for a metric": (loader(X, Y), {"metric": "f1"}, r"metric='f1': expected a function"),
    "a number for a loss": (loader(X, Y), {"loss": lambda _o, _t: 1.0}, "returned a float for 8 samples"),
    "a loss of another length": (loader(X, Y), {"loss": lambda o, _t: o[:3, 0]}, r"shape \(3,\) for 8 samples"),
    "no gradients": (loader(X, Y), {"loss": lambda o, t: (o.argmax(1) != t).float()}, "argmax and comparisons are not"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_its_fix(mistake):
    batches, options, message = MISTAKES[mistake]
    with pytest.raises(anytime.AnytimeError, match=message):
        fit(batches, **options)


def test_outputs_that_meet_every_target_are_refused():
    with pytest.raises(anytime.AnytimeError, match=r"8 × 8 numbers for 8 samples .* use outputs.squeeze\(1\)"):
        fit(loader(X, X[:, 0]), 1, loss=lambda outputs, targets: (outputs - targets) ** 2)


class EndsEarly:
    """Says that it has ten batches and has three."""

    def __len__(self):
        return 10

    def __iter__(self):
        return iter([(X, Y)] * 3)


@pytest.mark.parametrize(
    "batches",
    [loader(X, Y), EndsEarly(), [(X.numpy(), Y.numpy())], [(X, Y.int())], [(X, Y.to(torch.uint8))],
     [{"x": X, "labels": np.asarray(Y)}], iter([(X, Y), (X[:3], Y[:3])])],
    ids=["uneven", "ends early", "numpy", "int32", "uint8", "columns", "generator"],
)  # fmt: skip
def test_what_is_no_mistake(batches):
    assert fit(batches).history[0]["train"]["losses"][0] > 0


def test_a_loss_for_each_of_several_outputs_is_no_mistake():
    fit(loader(X, X), 8, loss=lambda outputs, targets: (outputs - targets) ** 2)  # 8 samples with 8 outputs each
