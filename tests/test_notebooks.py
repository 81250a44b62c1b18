"""The notebooks run from top to bottom; what they show is of their code; the site shows them."""

import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
READ = [pytest.param(json.loads(path.read_text(encoding="utf-8")), id=path.stem) for path in NOTEBOOKS]


@pytest.fixture(scope="module")
def notebooks():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        yield importlib.import_module("notebooks")


def code(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.parametrize("notebook", READ)
def test_a_notebook_runs_and_shows_the_same_kinds_of_things(notebooks, notebook, tmp_path):
    pytest.importorskip("ipykernel")
    pytest.importorskip("nbclient")
    done = notebooks.run(notebook, tmp_path)
    for before, after in zip(code(notebook), code(done), strict=True):
        assert kinds(before) == kinds(after), "".join(before["source"])


def kinds(cell):
    return [sorted(output.get("data", ["text"])) for output in cell["outputs"]]


@pytest.mark.parametrize("notebook", READ)
def test_a_notebook_was_run_from_top_to_bottom(notebook):
    assert [cell["execution_count"] for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    shown = [output for cell in code(notebook) for output in cell["outputs"]]
    assert not any(output["output_type"] == "error" for output in shown)
    assert sum("image/png" in output.get("data", {}) for output in shown) >= 1
    assert not re.search(r"/tmp/|/home/|/root/", json.dumps(notebook)), "no machine's paths"


@pytest.mark.parametrize("notebook", READ)
def test_a_page_shows_every_cell_and_what_it_showed(notebooks, notebook):
    page = notebooks.markdown(notebook)
    for cell in notebook["cells"]:
        assert "".join(cell["source"]) in page
    assert page.count("<img ") == sum("image/png" in o.get("data", {}) for c in code(notebook) for o in c["outputs"])
    assert "\x1b" not in page


def test_output_of_a_terminal_has_no_colors_on_the_page(notebooks):
    output = {"output_type": "stream", "name": "stdout", "text": ["\x1b[31mred\x1b[0m\n"]}
    cell = {"cell_type": "code", "source": ["print()"], "outputs": [output]}
    assert "```text\nred\n```" in notebooks.markdown({"cells": [cell]})


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_notebooks_lead_somewhere(path):
    text = "".join("".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (path.parent / target).exists(), target
