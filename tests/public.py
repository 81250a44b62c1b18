"""Public model libraries, made to import beside a torch that torchvision's compiled part was not built for."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

_library = torch.library.Library("torchvision", "FRAGMENT")  # kept: what it defines lives as long as it does


def timm():
    """The module ``timm``, or a skip."""
    found = importlib.util.find_spec("torchvision")
    if found and found.origin and not hasattr(torch.ops.torchvision, "nms"):
        source = (Path(found.origin).parent / "_meta_registrations.py").read_text()
        for name in sorted({"nms", *re.findall(r'register_(?:meta|fake)\("(?:torchvision::)?(\w+)"\)', source)}):
            _library.define(f"{name}(Tensor x) -> Tensor")  # never called: these models use none of them
    return pytest.importorskip("timm", exc_type=Exception)
