"""Public model libraries, made to import beside a torch that torchvision's compiled part was not built for."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

_library = torch.library.Library("torchvision", "FRAGMENT")  # kept: what it defines lives as long as it does


def repair_torchvision():
    """If torchvision was built for another torch, declare its operators, so that what imports it can be imported."""
    found = importlib.util.find_spec("torchvision")
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        source = (Path(found.origin).parent / "_meta_registrations.py").read_text()
        for name in sorted({"nms", *re.findall(r'register_(?:meta|fake)\("(?:torchvision::)?(\w+)"\)', source)}):
            _library.define(f"{name}(Tensor x) -> Tensor")  # never called: no tested model uses them
    except ImportError:
        pass  # not installed


def timm():
    """The module ``timm``, or a skip."""
    return pytest.importorskip("timm")
