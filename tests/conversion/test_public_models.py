"""Models of public libraries become anytime networks: the same numbers, real stages, honest costs."""

import importlib.util
import warnings

import laws
import pytest
import zoo
from tables import Table

import anytime

EVERY_TIME = [
    ("transformers", "ViT"),
    ("transformers", "Swin"),
    ("transformers", "ALBERT"),
    ("transformers", "GPT-2"),
    ("timm", "resnet18"),
    ("torchvision", "mobilenet_v2"),
]
ALL = [("transformers", n) for n in zoo.TRANSFORMERS] + [("timm", n) for n in zoo.TIMM]
ALL += [("torchvision", n) for n in zoo.TORCHVISION]
TABLE = Table("convert-models.md", ALL)


def converted(library, name):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    model, x = zoo.build(library, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model, x, anytime.convert(model, x, exits=4).eval()


def marked(model):
    return pytest.param(*model, marks=[] if model in EVERY_TIME else pytest.mark.slow)


@pytest.mark.parametrize(("library", "name"), [marked(model) for model in ALL])
def test_public_models_and_their_table(library, name, write_tables):
    model, x, net = converted(library, name)
    laws.conversion_law(model, x, net)
    shares = ", ".join(f"{100 * share:.0f}" for share in anytime.costs(net, x).fractions)
    layouts = [stage.parts[0].layout for stage in list(net.stages)[:-1] if not net.paused_because]
    crossing = ", ".join(str(len(layout)) for layout in layouts) or "paused"
    places = ", ".join(f"`{place}`" for place in net.places[:-1])
    TABLE.check([library, name, places, shares, crossing], write_tables)


def test_the_table_has_every_model():
    assert TABLE.listed() == ALL, "run: make tables"
