"""A network as ExecuTorch programs."""

import pytest
import torch
import zoo
from test_onnx import FAMILIES, images, lively, parity_law
from test_parity import samples

import anytime

pytest.importorskip("executorch", reason='needs: pip install "anytime-nets[executorch]"')
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CONVERTED = [("transformers", name) for name in ("ViT", "ResNet", "BERT", "ConvNeXt", "DistilBERT")]


@pytest.mark.parametrize("name", ["resann", "patches", "bottlenecks"])
def test_every_exit_is_as_it_was(name, tmp_path):
    net = lively(FAMILIES[name]())
    found = anytime.load_exported(anytime.export.executorch(net, images(1), tmp_path))
    parity_law(net, found, map(images, (1, 3, 17, 40)))  # 40: more than memory is planned for
    assert anytime.predict(found, images(2), exits=2).exit == 1


@pytest.mark.parametrize(("library", "name"), CONVERTED)
def test_a_converted_model(library, name, tmp_path):
    pytest.importorskip(library)
    model, x = zoo.build(library, name)
    net = anytime.convert(model, x, exits=4).eval()
    found = anytime.load_exported(anytime.export.executorch(net, x, tmp_path))
    parity_law(net, found, [samples(x, n) for n in (1, 3, 17)])


def test_damaged_programs(tmp_path):
    net = anytime.AnytimeNetwork([torch.nn.Linear(4, 4)], [torch.nn.Linear(4, 2)])
    anytime.export.executorch(net, torch.zeros(1, 4), tmp_path)
    path = tmp_path / "stage-01.pte"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(anytime.AnytimeError, match="checksum is wrong"):
        anytime.load_exported(tmp_path)
