"""Converted public models and all families as ONNX: every exit as it was."""

import importlib.util
import warnings

import pytest
import torch
import zoo
from tables import Table
from test_onnx import FAMILIES, exported, images, lively, parity_law

import anytime

PUBLIC = [
    *(
        ("transformers", name)
        for name in ("ViT", "DeiT", "Swin", "ConvNeXt", "ResNet", "DINOv2", "BERT", "ALBERT", "DistilBERT")
    ),
    *(("timm", name) for name in ("resnet18", "resnet26d", "vit_tiny_patch16_224", "convnext_atto", "mixer_s32_224")),
    *(("timm", name) for name in ("vgg11_bn",)),
    *(("torchvision", name) for name in ("resnet18", "mobilenet_v2", "squeezenet1_1", "alexnet", "mnasnet0_5")),
]
OURS = [("anytime", name) for name in (*FAMILIES, "EANN")]
TABLE = Table("export-models.md", [*OURS, *PUBLIC])


def samples(x, n):
    rows = torch.arange(n) % 2
    return {key: value[rows] for key, value in x.items()} if isinstance(x, dict) else torch.randn(n, *x.shape[1:])


def difference(library, name, folder):
    """The exported network, and how far it is from the network."""
    if library == "anytime":
        nets = [FAMILIES[each]() for each in (("patches", "resann") if name == "EANN" else (name,))]
        net, x = (anytime.EANN(nets) if name == "EANN" else nets[0]), images(2)
        net = lively(net)
    else:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
        model, x = zoo.build(library, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net = anytime.convert(model, x, exits=4).eval()
    found = exported(net, x, folder)
    return found, parity_law(net, found, [samples(x, n) for n in (1, 3, 17)])


def test_a_converted_model(tmp_path):
    class Block(torch.nn.Module):
        """Uses the number of samples, which tracing would fix."""

        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x):
            return (x + self.linear(x.reshape(x.shape[0] * 2, 8)).relu_().reshape(x.shape[0], 16)).contiguous()

    model = torch.nn.Sequential(torch.nn.Linear(4, 16), Block(), Block(), torch.nn.Linear(16, 3)).eval()
    net = anytime.convert(model, torch.randn(2, 4), exits=["1"]).eval()
    assert net.paused_because is None
    found = exported(net, torch.randn(2, 4), tmp_path)
    parity_law(net, found, [torch.randn(n, 4) for n in (1, 3, 17)])


@pytest.mark.slow
@pytest.mark.parametrize(("library", "name"), [*OURS, *PUBLIC])
def test_exports_and_their_table(library, name, tmp_path, write_tables):
    found, worst = difference(library, name, tmp_path / "onnx")
    crossing = ", ".join(str(len(state)) for state in found.description.states[:-1])
    TABLE.check([library, name, found.exits, crossing, f"{worst:.0e}"], write_tables, exact=4)  # differences differ


def test_the_table_has_our_networks_and_no_others():
    assert TABLE.listed() == TABLE.keys, "run: make tables"
