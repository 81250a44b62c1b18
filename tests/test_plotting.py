"""Plots: the same color for a scheme everywhere, axes that say what they show, files that are pictures."""

import pytest

from anytime import plotting
from anytime.cost import Costs
from anytime.drawing import OTHER_COLORS, colors_of
from anytime.evaluation import Curve
from anytime.inference.calibration import Budgeted

matplotlib = pytest.importorskip("matplotlib")
plt = pytest.importorskip("matplotlib.pyplot")
Figure = pytest.importorskip("matplotlib.figure").Figure

MACS = [1_000_000, 2_000_000, 4_000_000]
CURVE = Curve([0.3, 0.2, None], [1.0, 0.9, None], Costs(MACS, MACS), images=500)
EPOCH = {"train": {"losses": [1.0, None, 0.5], "errors": [0.4, None, 0.2]}, "validation": {"errors": [0.5, None, 0.3]}}
HELD = {"resann, CONST": [(MACS, [0.8, 0.2, 0.1])] * 2, "resann, AdaLoss": [(MACS, [0.7, 0.2, 0.1])]}


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn."""
    drawn = []

    def save(figure, *args, save=Figure.savefig, **options):
        drawn.append(figure)
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", save)
    return drawn


def test_a_users_backend_and_figures_are_left_alone(tmp_path):
    before = matplotlib.get_backend()
    plt.switch_backend("svg")
    try:
        plt.figure()
        figures = plt.get_fignums()
        plotting.plot_curves({"adaloss": CURVE}, tmp_path / "curves.png")
        assert matplotlib.get_backend() == "svg"
        assert plt.get_fignums() == figures
    finally:
        plt.switch_backend(before)


def test_a_scheme_has_one_color_in_all_plots():
    adaloss, const = plotting.SCHEME_COLORS["adaloss"], plotting.SCHEME_COLORS["const"]
    assert colors_of(["const", "adaloss:gamma=0.1"]) == [const, adaloss]
    first, something, last = colors_of(["resann-5-8, AdaLoss", "something", "CONST"])
    assert (first, last) == (adaloss, const)
    assert something in set(plotting.SCHEME_COLORS.values()) - {adaloss, const}, "one palette beside schemes"
    assert colors_of(["something", "else"]) == list(OTHER_COLORS[:2])
    assert len(set(plotting.SCHEME_COLORS.values()) | set(OTHER_COLORS)) == len(plotting.SCHEME_COLORS) + len(
        OTHER_COLORS
    )
    assert len(set(colors_of([f"network {i}, AdaLoss" for i in range(5)]))) == 5


def test_curves_have_exit_numbers_and_a_second_axis(figures, tmp_path):
    plotting.plot_curves({"adaloss": CURVE}, tmp_path / "one.png", "title", {"adaloss": [0.1, 0.2, 0.7]})
    plotting.plot_curves({"adaloss": CURVE, "const": CURVE}, tmp_path / "two.png")
    one, two = (figure.axes for figure in figures)
    assert [text.get_text() for text in one[0].texts] == ["exit 1", "2"], "those that were evaluated"
    assert one[0].child_axes[0].get_xlabel() == "% of the cost"
    assert one[0].get_ylim()[0] > 10, "the room is used"
    assert not one[0].get_legend(), "one name needs no legend"
    assert [text.get_text() for text in two[0].get_legend().get_texts()] == ["adaloss", "const"]


def test_panels_side_by_side_have_the_same_scales(figures, tmp_path):
    plotting.plot_held(HELD, tmp_path / "held.png", panels={"a": ["resann, CONST"], "b": ["resann, AdaLoss"]})
    bars = {"cifar10": {"const": [[0.1, 0.2]]}, "svhn": {"const": [[0.9, 0.8]]}}
    plotting.plot_bars(bars, ["1"], tmp_path / "bars.png", "x", "y")
    plotting.plot_inflation([2, 3], tmp_path / "inflation.png")
    for figure in figures:
        assert len(figure.axes) == 2
        assert len({axis.get_ylim() for axis in figure.axes}) == 1


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_every_plot_becomes_a_picture(tmp_path, suffix):
    def path(name):
        return tmp_path / f"{name}.{suffix}"

    budgets = [Budgeted(budget=2e6, cost=1.5e6, error=0.2, shares=[0.5, 0.5, 0.0])]
    drawn = [
        plotting.plot_curves({"adaloss": CURVE}, path("curves")),
        plotting.plot_budgets(CURVE, {"confidence": budgets}, path("budgets")),
        plotting.plot_learning([EPOCH | {"epoch": 1}, EPOCH | {"epoch": 2}], path("learning")),
        plotting.plot_held(HELD, path("held"), points=["resann, CONST"]),
        plotting.plot_lines({"adaloss": [[1, 2], [3, 4]]}, [1, 2], path("lines"), "x", "y", linear_to=20),
    ]
    start = b"\x89PNG" if suffix == "png" else b"<?xml"
    assert all(picture.read_bytes().startswith(start) for picture in drawn)
