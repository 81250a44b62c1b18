"""Every Python block of the documents runs; every shell block's `anytime` commands exist."""

import importlib
import json
import re
import shlex
import subprocess
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


def test_readme_is_read_in_five_minutes():
    assert len((ROOT / "README.md").read_text().split()) <= 900


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


@pytest.fixture(scope="module")
def measuring(figures):  # noqa: ARG001
    return importlib.import_module("measuring")


def test_figures_are_those_of_their_records(figures):
    for page in PAGES:
        text = page.read_text()
        assert text == figures.fill(text), f"{page.name} is not what docs/records say: run python docs/figures.py"


def test_every_figure_and_record_is_used(figures, measuring):
    shown = {name for page in PAGES for name in re.findall(r"<!--(\w+)-->", page.read_text())}
    assert shown == set(figures.FIGURES) | {"measured"}
    assert {path.stem for path in measuring.RECORDS.iterdir()} == set(figures.MEASUREMENTS)


def test_records_say_what_was_measured_when_and_where(figures):
    for name, (command, _) in figures.MEASUREMENTS.items():
        record = figures.read(name)
        assert record["command"].split()[:2] == command.split()[:2], name  # its options may have changed since
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])
        assert re.fullmatch(r"[0-9a-f]{7,40}\+?", record["commit"])
        assert "torch" in record["machine"]


def test_a_page_says_at_which_commit_each_of_its_records_was_measured(figures):
    for page in PAGES:
        text = page.read_text()
        names = figures.records_of(text)
        assert ("<!--measured-->" in text) == bool(names), page.name
        for name in names:
            last = text.rpartition("<!--measured-->")[2]
            assert f"`{name}`" in last
            assert f"at {figures.read(name)['commit']} ({figures.read(name)['date']})" in last


def test_the_ends_of_a_spread_are_not_rounded_away(figures, monkeypatch):
    found = {"median": 11.6, "low": 0.553, "high": 1337.4, "n": 9}
    monkeypatch.setattr(figures, "results", lambda _: {"figures": {"what": found}})
    assert figures.ratio("record", "what", 1)() == "11.6 (0.55 to 1337, n=9)"
    assert figures.ratio("record", "what", 3)() == "11.600 (0.55 to 1337.40, n=9)"


def test_every_missed_goal_is_in_the_list_of_missed_goals(figures):
    """A verdict with a limit that a benchmark computes is judged on the page, whenever its record was made."""
    listed = figures.missed()
    for record in figures.MEASUREMENTS:
        for name, judged in figures.results(record).get("verdicts", {}).items():
            limit = judged["limit"]
            missed = limit is not None and (judged["ratio"] < limit if judged["least"] else judged["ratio"] > limit)
            assert missed == (not judged["ok"])
            row = f"| {figures.GOALS.get(name, name)} | {judged['ratio']:.3f} |"
            assert not missed or row in listed, row
    for team in ("eann_parallel", "eann_parallel_ray"):  # ensembles.md names the goal: 1
        assert figures.results(team)["verdicts"][f"{team}_two"]["limit"] == 1


def test_every_batch_size_that_was_measured_is_shown(figures):
    shown = {(record, what) for record, what, *_ in figures.ROWS}
    for record in (name for name in figures.MEASUREMENTS if name.startswith("export_r")):
        assert {what for name, what in shown if name == record} <= set(figures.results(record)["figures"])
        for what in figures.results(record)["figures"]:
            batch = re.search(r"batch \d+", what)[0]
            assert any(name == record and batch in each for name, each in shown), (record, what)


@pytest.fixture
def made_records(measuring, tmp_path, monkeypatch):
    """A project with a package, a script and two commands, whose records are complete."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text("one = 1\n")
    (tmp_path / "script.py").write_text(
        "import json, os, sys\nopen('ran', 'a').write(sys.argv[1] + ' ')\n"
        "if sys.argv[1] == 'slow' and os.path.exists('broken'): sys.exit(1)\nprint(json.dumps({'facts': {}}))\n"
    )
    code = {"slow": ["package", "script.py"], "quick": ["script.py"]}
    monkeypatch.setattr(measuring, "ROOT", tmp_path)
    monkeypatch.setattr(measuring, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(
        measuring, "MEASUREMENTS", {name: (f"python script.py {name}", paths) for name, paths in code.items()}
    )
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "c"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    measuring.measure_all(["slow", "quick"], "cifar10")
    for name, seconds in (("slow", 60), ("quick", 1)):
        path = tmp_path / "records" / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": seconds}))
    return tmp_path


def test_stale_names_the_records_whose_code_or_command_has_changed(measuring, made_records, monkeypatch):
    both = ["slow", "quick"]
    assert measuring.stale(both) == []
    (made_records / "package" / "module.py").write_text("one = 2\n")
    assert measuring.stale(both) == ["slow"]
    (made_records / "package" / "another.py").touch()
    with (made_records / "script.py").open("a") as script:
        script.write("two = 3\n")
    assert measuring.stale(both) == ["quick", "slow"]  # the quickest first
    measuring.measure_all(both, "cifar10")
    assert measuring.stale(both) == []
    monkeypatch.setitem(measuring.MEASUREMENTS, "quick", ("python script.py other", ["script.py"]))
    assert measuring.stale(both) == ["quick"]


def test_records_are_renewed_one_by_one_and_a_failure_does_not_stop_the_others(measuring, made_records):
    assert measuring.read("slow")["commit"] == measuring.commit(["script.py"])
    with (made_records / "script.py").open("a") as script:
        script.write("two = 3\n")
    (made_records / "broken").touch()
    (made_records / "ran").unlink()
    (failed,) = measuring.measure_all(["slow", "quick"], "cifar10")
    assert failed.startswith("slow failed")
    assert (made_records / "ran").read_text() == "slow quick "
    assert measuring.stale(["slow", "quick"]) == ["slow"]  # the next time only what is missing
    assert measuring.read("quick")["commit"].endswith("+")  # the code is not that of the commit


def test_a_missing_network_is_named_with_the_command_that_trains_it(measuring, made_records, monkeypatch):
    monkeypatch.setitem(measuring.MEASUREMENTS, "net", ("python script.py runs/net", ["script.py"]))
    monkeypatch.setattr(measuring, "RUNS", {"runs/net": "anytime train --output runs/net"})
    assert measuring.measure_all(["net"], "cifar10") == [
        "net needs the trained network runs/net: anytime train --output runs/net"
    ]
    assert "runs/net" not in (made_records / "ran").read_text()


def test_what_trains_every_measured_network_is_known(measuring):
    words = {
        word for command, _ in measuring.MEASUREMENTS.values() for word in command.partition("--output")[0].split()
    }
    assert {word for word in words if word.startswith("runs/")} == set(measuring.RUNS)


def test_a_figure_that_drifts_is_put_right(figures):
    text = (ROOT / "docs/PERFORMANCE.md").read_text()
    drifted = re.sub(r"(<!--deadlines_full-->)\S+", r"\g<1>0.5<!---->", text, count=1)
    assert figures.fill(re.sub(r"<!---->\S*<!---->", "<!---->", drifted)) == text
    with pytest.raises(SystemExit, match="knows no such figure"):
        figures.fill("<!--nonsense-->1<!---->")
