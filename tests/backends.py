"""Networks on every backend that is installed, for the laws that hold on each of them."""

import functools
import importlib.util
import tempfile
from pathlib import Path

import torch
from torch import nn

import anytime

BACKENDS = ["eager", *(["onnx"] if importlib.util.find_spec("onnxruntime") else [])]
_KEPT = tempfile.TemporaryDirectory()


def on(backend, build, example):
    """The network that ``build`` returns, on a backend; exported once, loaded anew each time.

    It runs every stage by itself, so that its stages can be hooked.
    """
    net = build() if backend == "eager" else anytime.load_exported(_exported(build, example))
    net.joins_stages = False
    return net


@functools.cache
def _exported(build, example):
    return anytime.export.onnx(build(), example, tempfile.mkdtemp(dir=Path(_KEPT.name)))


class Add(nn.Module):
    def forward(self, x):
        return x + 1


@functools.cache
def _adding(stages):
    return lambda: anytime.AnytimeNetwork([Add() for _ in range(stages)], [nn.Identity() for _ in range(stages)]).eval()


ZERO = torch.zeros(1)


def adding(backend, stages, before=None):
    """A network whose exit i answers its input plus i; ``before`` is called with each stage when that is begun."""
    net = on(backend, _adding(stages), ZERO)
    for stage in net.stages:
        stage.begun = 0
        stage.register_forward_pre_hook(functools.partial(_begin, before))
    return net


def _begin(before, stage, _args):
    stage.begun += 1
    if before:
        before(stage)
