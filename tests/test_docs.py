"""Every Python block of the documents runs; every shell block's `anytime` commands exist."""

import re
import shlex
from pathlib import Path

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
