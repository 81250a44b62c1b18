"""Short training runs, and what the tests ask of them."""

import signal

import pytest
import torch
from torch import nn

import anytime


def small(**options):
    torch.manual_seed(1)
    return anytime.create_model("resann-1-4", in_channels=1, **options)


def linear(width=16, dropout=0.0):
    """A network without convolutions and batch norm."""
    torch.manual_seed(1)
    stages = [
        nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Dropout(dropout)),
        nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout)),
    ]
    return anytime.AnytimeNetwork(stages, [nn.Linear(width, 10), nn.Linear(width, 10)])


def train(net, data, scheme="adaloss", **options):
    return anytime.fit(net, data, scheme, **{"epochs": 2, "show": False, **options})


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def without_time(history):
    return [{k: v for k, v in record.items() if "second" not in k} for record in history]


def stopped(net, data, folder, scheme="adaloss", after=3, **options):
    """A run that SIGTERM ends after some steps."""
    calls = []

    class Impatient(type(anytime.create_scheme(scheme, net.exits))):
        def forward(self, losses):
            calls.append(1)
            if len(calls) == after:
                signal.raise_signal(signal.SIGTERM)
            return super().forward(losses)

    impatient = anytime.create_scheme(scheme, net.exits)
    name = type(impatient).__name__
    Impatient.__name__ = name
    impatient.__class__ = Impatient
    with pytest.raises(KeyboardInterrupt):
        train(net, data, impatient, output=folder, **{"lr": 0.01, **options})
    assert len(calls) == after
