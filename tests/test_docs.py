"""Every Python block of the documents runs; every shell block's `anytime` commands exist."""

import importlib
import json
import re
import shlex
from pathlib import Path

import pytest
import typer

from anytime import UnfinishedError, cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language):
    for page in PAGES:
        for i, match in enumerate(re.finditer(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)):
            yield pytest.param(page, match[1], id=f"{page.name}-{i + 1}")


TOGETHER = ["pretrained.md"]
"""Pages whose blocks belong together; tests of their own run them."""

TRIES = 10
"""A busy machine may miss a deadline of milliseconds once, not every time."""


@pytest.mark.parametrize(
    ("page", "code"), [block for block in blocks("python") if block.values[0].name not in TOGETHER]
)
def test_python_block(page, code, tmp_path, monkeypatch):
    """As it is printed."""
    run_block(code, page, tmp_path, monkeypatch)


def run_block(code, page, folder, monkeypatch):
    for attempt in range(TRIES):
        (folder / str(attempt)).mkdir()
        monkeypatch.chdir(folder / str(attempt))
        try:
            exec(compile(code, str(page), "exec"), {"__name__": "__main__"})
            break
        except UnfinishedError:
            if attempt == TRIES - 1:
                raise


def test_a_block_whose_deadline_cannot_be_met_fails(tmp_path, monkeypatch):
    code = "import torch, anytime\nnet = anytime.create_model('resann-1-4').eval()\n"
    code += "anytime.predict(net, torch.zeros(1, 3, 32, 32), deadline=0.000001)\n"
    with pytest.raises(UnfinishedError):
        run_block(code, "a page", tmp_path, monkeypatch)


@pytest.mark.parametrize(("page", "code"), list(blocks("sh")))
def test_shell_block(page, code):  # noqa: ARG001
    for line in code.splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_their_options_exist(page):
    """In blocks, in indented lines and within sentences."""
    group = typer.main.get_command(cli.app)
    for line in re.findall(r"(?:^ {0,4}|`|-m )anytime ([a-z-]+[^`\n#]*)", page.read_text(), re.M):
        name, *words = line.split()
        assert name in group.commands, line
        known = {option for parameter in group.commands[name].params for option in parameter.opts} | {"--trust"}
        options = {word for word in words if word.startswith("--") and len(word) > 2}
        assert options <= known, f"{page.name}: anytime {name} has no {', '.join(options - known)}"


def test_local_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.fixture(scope="module")
def figures():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        yield importlib.import_module("figures")


def test_figures_are_those_of_their_records(figures):
    for page in PAGES:
        text = page.read_text()
        assert text == figures.fill(text), f"{page.name} is not what docs/records say: run python docs/figures.py"


def test_every_figure_and_record_is_used(figures):
    shown = {name for page in PAGES for name in re.findall(r"<!--(\w+)-->", page.read_text())}
    assert shown == set(figures.FIGURES)
    assert {path.stem for path in figures.RECORDS.iterdir()} == set(figures.MEASUREMENTS)


def test_records_say_what_was_measured_when_and_where(figures):
    for name, (command, _) in figures.MEASUREMENTS.items():
        record = figures.read(name)
        assert record["command"] == command.format(data="cifar10")
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])
        assert re.fullmatch(r"[0-9a-f]{7,40}", record["commit"])
        assert "torch" in record["machine"]


def test_stale_names_the_records_whose_code_has_changed(figures, tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text("one = 1\n")
    (tmp_path / "script.py").write_text("two = 2\n")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "RECORDS", tmp_path)
    code = {"of_both": ["package", "script.py"], "of_the_script": ["script.py"]}
    monkeypatch.setattr(figures, "MEASUREMENTS", {name: ("python script.py", paths) for name, paths in code.items()})
    for name, paths in code.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"code": figures.digest(paths)}))
    assert figures.stale() == []
    (tmp_path / "package" / "module.py").write_text("one = 2\n")
    assert figures.stale() == ["of_both"]
    (tmp_path / "package" / "another.py").touch()
    (tmp_path / "script.py").write_text("two = 3\n")
    assert figures.stale() == ["of_both", "of_the_script"]


def test_a_figure_that_drifts_is_put_right(figures):
    text = (ROOT / "docs/PERFORMANCE.md").read_text()
    drifted = re.sub(r"(<!--deadlines_p99-->)\S+", r"\g<1>0.5<!---->", text, count=1)
    assert figures.fill(re.sub(r"<!---->\S*<!---->", "<!---->", drifted)) == text
    with pytest.raises(SystemExit, match="knows no such figure"):
        figures.fill("<!--nonsense-->1<!---->")
