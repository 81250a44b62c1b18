"""Models of public libraries become anytime networks: the same numbers, real stages, honest costs."""

import importlib.util
import re
import warnings
from pathlib import Path

import laws
import pytest
import zoo

import anytime

TABLE = Path(__file__).parents[2] / "docs" / "convert-models.md"
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


def converted(library, name):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    model, x = zoo.build(library, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model, x, anytime.convert(model, x, exits=4).eval()


@pytest.mark.parametrize(("library", "name"), EVERY_TIME)
def test_public_models(library, name):
    model, x, net = converted(library, name)
    laws.conversion_law(model, x, net)
    assert net.paused_because is None


@pytest.mark.slow
def test_all_public_models_and_their_table():
    lines = ["| library | model | exits after | % of the cost | tensors that cross a cut |", "|---|---|---|---|---|"]
    for library, name in ALL:
        model, x, net = converted(library, name)
        cost = anytime.costs(net, x)
        shares = ", ".join(f"{100 * share:.0f}" for share in cost.fractions)
        crossing = "paused" if net.paused_because else ", ".join(str(len(s.layout)) for s in list(net.stages)[:-1])
        places = ", ".join(f"`{place}`" for place in net.places[:-1])
        lines.append(f"| {library} | {name} | {places} | {shares} | {crossing} |")
        laws.conversion_law(model, x, net)
    text = TABLE.read_text()
    TABLE.write_text(text[: text.index("| library |")] + "\n".join(lines) + "\n")


def test_the_table_has_every_model():
    listed = re.findall(r"^\| (\w+) \| ([\w.-]+) \|", TABLE.read_text(), re.M)[1:]
    assert listed == ALL, "run: make test-slow"
