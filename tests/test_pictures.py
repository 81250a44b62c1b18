"""Every picture of the documents is drawn from the record that is there now, and says so."""

import importlib
import json
import re
from pathlib import Path

import pytest

from anytime.drawing import OTHER_COLORS, SCHEME_COLORS

pytest.importorskip("matplotlib")
DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def pictures():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        yield importlib.import_module("pictures")


@pytest.fixture(scope="module")
def screens(pictures):  # noqa: ARG001
    return importlib.import_module("screens")


def test_screenshots_show_the_model_in_the_package(screens):
    assert {name: screens.shown(name) for name in screens.SCREENS} == dict.fromkeys(screens.SCREENS, screens.model())


def test_pictures_are_drawn_from_the_records_that_are_there(pictures):
    old = [name for name, each in pictures.PICTURES.items() if pictures.drawn_from(name) != pictures.source(each)]
    assert not old, "their records have changed since: run python docs/figures.py draw"


def test_every_picture_that_a_page_shows_has_a_record(pictures, screens):
    shown = {
        (page.parent / target).resolve().relative_to(DOCS).as_posix()
        for page in [DOCS.parent / "README.md", *DOCS.glob("*.md")]
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    assert {name for name in shown if not name.startswith("reproduction/")} == set(pictures.PICTURES) | set(
        screens.SCREENS
    )


def test_the_report_was_drawn_from_the_records_that_are_there():
    from experiments.records import Records
    from experiments.report import DRAWN, digest

    assert json.loads((DOCS / DRAWN).read_text(encoding="utf-8")) == {"records": digest(Records.read())}


def test_a_picture_is_the_same_whenever_it_is_drawn_and_changes_with_its_record(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "DOCS", tmp_path)
    monkeypatch.setattr(
        pictures, "PICTURES", {name: pictures.PICTURES[name] for name in ("guarantees.svg", "three-deadlines.svg")}
    )
    pictures.draw()
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    pictures.draw(everything=True)
    assert first == {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def other(record, results=pictures.results):
        found = json.loads(json.dumps(results(record)))
        return found | {"more": 1} if record == "guarantees_heads" else found

    monkeypatch.setattr(pictures, "results", other)
    changed = [name for name, each in pictures.PICTURES.items() if pictures.drawn_from(name) != pictures.source(each)]
    assert changed == ["guarantees.svg"]


def test_the_terminal_shows_each_answer_and_needs_no_script(pictures):
    answers = [
        {"deadline_ms": each, "class": name, "probability": 0.5, "exit": exit, "ms": each / 2}
        for each, name, exit in ((0.4, "dog", 1), (1, "<cat>", 3), (9, "cat", 6))
    ]
    svg = pictures.three_deadlines({"picture": "03-cat.png", "exits": 6, "answers": answers})
    assert svg.count("anytime.predict(net, cat, deadline=") == 3
    for words in ("deadline=0.0004)", "&lt;cat&gt;, 50 % sure", "exit 6 of 6, 4.50 ms"):
        assert words in svg
    assert "<script" not in svg
    assert "prefers-reduced-motion" in svg


def contrast(color):
    """With white: WCAG's ratio."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 1.05 / (0.05 + sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))


@pytest.mark.parametrize("color", [*SCHEME_COLORS.values(), *OTHER_COLORS])
def test_the_palette_can_be_seen_on_white(color):
    assert contrast(color) > 2
