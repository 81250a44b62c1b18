"""Every Python block of the documents runs; every shell block's `anytime` commands exist."""

import re
import runpy
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from anytime import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language):
    for page in PAGES:
        for i, match in enumerate(re.finditer(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)):
            yield pytest.param(page, match[1], id=f"{page.name}-{i + 1}")


@pytest.mark.parametrize(("page", "code"), list(blocks("python")))
def test_python_block(page, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(page), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(("page", "code"), list(blocks("sh")))
def test_shell_block(page, code):  # noqa: ARG001
    commands = {c.name or c.callback.__name__ for c in cli.app.registered_commands}
    for line in code.splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["anytime"]:
            assert words[1] in commands, line
        elif words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M), line


def test_local_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.fixture(scope="module")
def figures():
    return SimpleNamespace(**runpy.run_path(str(ROOT / "docs/figures.py")))


def test_figures_are_those_of_their_records(figures):
    for page in PAGES:
        text = page.read_text()
        assert text == figures.fill(text), f"{page.name} is not what docs/records say: run python docs/figures.py"


def test_every_figure_and_record_is_used(figures):
    shown = {name for page in PAGES for name in re.findall(r"<!--(\w+)-->", page.read_text())}
    assert shown == set(figures.FIGURES)
    assert {path.stem for path in figures.RECORDS.iterdir()} == set(figures.COMMANDS)
    for name, command in figures.COMMANDS.items():
        assert figures.read(name).splitlines()[0] == f"$ {command.format(data='cifar10')}"


def test_a_figure_that_drifts_is_put_right(figures):
    text = (ROOT / "docs/PERFORMANCE.md").read_text()
    drifted = re.sub(r"(<!--exit_tax-->)\S+", r"\g<1>0.5", text)
    assert drifted != text
    assert figures.fill(drifted) == text
    with pytest.raises(SystemExit, match="knows no such figure"):
        figures.fill("<!--nonsense-->1<!---->")
