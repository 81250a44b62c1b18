"""Results show themselves: tables as text and HTML, axes that are the caller's, no files, no other backend."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import anytime
from anytime.cost import Costs
from anytime.evaluation import Curve
from anytime.inference.policy import Policy
from anytime.metrics import wilson

matplotlib = pytest.importorskip("matplotlib")
plt = pytest.importorskip("matplotlib.pyplot")
Axes = pytest.importorskip("matplotlib.axes").Axes

COSTS = Costs([50, 100], [10, 2_000_000])
CURVE = Curve([0.33, None], [1.0, None], COSTS, images=100)
PROFILE = anytime.Profile([0.003, 0.002, 0.001], [0.0005, None, 0.0005])
POLICY = Policy("confidence", [0.9], [1.0, 1.0], costs=[1.0, 3.0], shares=[0.5, 0.5], budget=2.0)
HISTORY = [{"epoch": 3, "train": {"losses": [1.0, 0.5]}, "weights": [0.5, 1.0], "validation": {"errors": [0.4, None]}}]
RESULT = anytime.FitResult(HISTORY, CURVE, None)
PLOTTED = {"curve": CURVE, "profile": PROFILE, "policy": POLICY}
SHOWN = {"costs": COSTS, "curve": CURVE, "profile": PROFILE, "fit": RESULT}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder, and no open figures."""
    monkeypatch.chdir(tmp_path)
    plt.close("all")
    yield tmp_path
    plt.close("all")


@pytest.mark.parametrize("backend", ["agg", "svg"])
@pytest.mark.parametrize("shown", PLOTTED.values(), ids=PLOTTED)
def test_a_plot_is_axes_and_changes_nothing_else(shown, backend, folder):
    before = matplotlib.get_backend()
    plt.switch_backend(backend)
    try:
        axis = shown.plot()
        assert isinstance(axis, Axes)
        assert axis.get_xlabel()
        assert axis.get_ylabel()
        assert matplotlib.get_backend() == backend
        assert plt.get_fignums() == [axis.figure.number], "pyplot knows it, so plt.show() and notebooks show it"
        own = matplotlib.figure.Figure().subplots()
        assert shown.plot(own) is own
        assert own.has_data()
        assert len(plt.get_fignums()) == 1, "given axes need no figure"
    finally:
        plt.switch_backend(before)
    assert not list(folder.iterdir())


def test_plots_show_what_the_objects_hold(folder):  # noqa: ARG001
    (line,) = CURVE.plot(label="a").lines
    assert line.get_xydata().tolist() == [[0.00005, 33.0]], "exits that were not evaluated have no point"
    axis = PROFILE.plot()
    ends = [round(bar.get_x() + bar.get_width(), 6) for bar in axis.patches]
    assert ends == [3.0, 5.0, 6.0, *(round(1000 * seconds, 6) for seconds in PROFILE.alone)]
    axis = POLICY.plot()
    assert [bar.get_height() for bar in axis.patches] == [50.0, 50.0]
    assert "≥ 0.9" in {text.get_text() for text in axis.texts}
    assert "mean cost 67%" in axis.get_title(loc="left")


@pytest.mark.parametrize("shown", SHOWN.values(), ids=SHOWN)
def test_tables_in_notebooks_have_a_row_for_each_exit(shown):
    html = shown._repr_html_()
    exits = 2
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    assert len(rows) == exits + 1
    assert len({row.count("<t") for row in rows}) == 1
    assert [re.findall(r"<td>(.*?)</td>", row)[0] for row in rows[1:]] == ["1", "2"]


def test_printed_results_are_tables():
    assert str(RESULT).splitlines() == [
        "exit    cost  train loss  weight  validation error  error",
        "   1   50.0%       1.000   0.500             0.400  0.330",
        "   2  100.0%       0.500   1.000                 –      –",
    ]
    assert str(PROFILE).splitlines() == [
        "exit  stages ms  head ms  this head only  all heads",
        "   1       3.00     0.50            3.50       3.50",
        "   2       3.00     0.50            6.50       7.00",
    ]
    assert "history" not in repr(RESULT)


def test_a_training_without_weights_or_data_to_judge_prints_too():
    net = anytime.AnytimeNetwork([torch.nn.Linear(2, 2)] * 2, [torch.nn.Linear(2, 2) for _ in range(2)])
    batches = [(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))]
    result = anytime.fit(net, batches, torch.sum, epochs=1, lr=0.1, show=False)
    assert str(result).splitlines()[0].split() == ["exit", "train", "loss"]
    assert len(str(result).splitlines()) == 3


@given(wrong=st.integers(0, 400), more=st.integers(0, 400))
def test_an_interval_holds_the_share_and_shrinks_with_samples(wrong, more):
    samples = max(1, wrong + more)
    low, high = wilson(wrong / samples, samples)
    assert 0 <= low <= wrong / samples + 1e-12
    assert wrong / samples - 1e-12 <= high <= 1
    narrow = wilson(wrong / samples, 100 * samples)
    assert narrow[1] - narrow[0] < high - low


def luminous(color):
    """A color of hexadecimal digits as linear light."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return torch.tensor([part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts])


SEEN = {
    "normal": torch.eye(3),
    "deuteranopia": torch.tensor([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "protanopia": torch.tensor([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
}
"""What readers see of linear light (Machado et al. 2009, severity 1)."""


def lab(light):
    """CIELAB of linear light."""
    xyz = torch.tensor([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ light
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (xyz / torch.tensor([0.9505, 1.0, 1.089])).tolist()
    )
    return torch.tensor([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("reader", SEEN)
@pytest.mark.parametrize("palette", ["SCHEME_COLORS", "OTHER_COLORS"])
def test_color_blind_readers_tell_the_colors_apart(palette, reader):
    from anytime import drawing

    colors = getattr(drawing, palette)
    colors = list(colors.values()) if isinstance(colors, dict) else list(colors)
    seen = [lab((SEEN[reader] @ luminous(color)).clamp(0, 1)) for color in colors]
    for i, one in enumerate(seen):
        for j in range(i):
            assert torch.dist(one, seen[j]) > 10, f"{colors[i]} and {colors[j]} look alike"
