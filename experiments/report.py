"""What the records say: ``REPRODUCTION.md`` and a page for browsers."""

import base64
import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from anytime.files import write_json, write_text
from experiments import EXPERIMENTS, load
from experiments.claims import HEADER, RULES, counted, rows
from experiments.presets import ABOUT
from experiments.records import Record, Records, Section, as_table

INTRO = """The paper's tables and figures, run with this library. All numbers, figures and verdicts below are computed
from the records of training runs in `experiments/records` by `python -m experiments report`; a record holds the run's
settings, versions, seconds and every exit's errors and losses. A difference counts as shown if its 95 % interval over
seeds excludes 0. Intervals are not corrected for the number of comparisons: of a hundred without any effect, about
five would be called shown. Hours are those of the fastest epoch times the number of epochs. Runs of one seed have the
same images and the same first weights in all schemes, so schemes are compared seed by seed. All seeds train on the
same images and are tested on the same images: an interval covers the first weights and the order of the images, not
the choice of images."""
PICTURES = "reproduction"
DRAWN = f"{PICTURES}/drawn.json"
"""What the pictures beside it were drawn from."""
INDEPENDENT = """**Independent work.** AM-RADIO (arXiv 2312.06709) balances the losses of several teachers, and its
authors report AdaLoss as the best of the ways that they compare on ImageNet and the worst on ADE20K: as here, which
balance is best depends on data and measure. Med-RADIO takes AM-RADIO's training to medical images. Neither is about
exits at several depths."""


def write_report(preset: str, records: Records, folder: Path) -> None:
    """Write ``REPRODUCTION.md`` with pictures beside it, and one HTML page with everything in it.

    Args:
        preset: whose runs.
        records: what is finished.
        folder: where to.
    """
    sections = {name: load(name).show(preset, records) for name in EXPERIMENTS}
    pictures = {path: draw for name, section in sections.items() for path, _, draw in _pictures(name, section)}
    (folder / PICTURES).mkdir(parents=True, exist_ok=True)
    for path, draw in pictures.items():
        draw(folder / path)
    for old in (old for name in EXPERIMENTS for old in (folder / PICTURES).glob(f"{name}-*.png")):
        if f"{PICTURES}/{old.name}" not in pictures:  # of an earlier report
            old.unlink()
    write_json(folder / DRAWN, {"records": digest(records)})
    write_text(folder / "REPRODUCTION.md", as_markdown(preset, sections))
    write_text(folder / "reproduction.html", as_page(preset, sections, folder))


def digest(records: Records) -> str:
    """Of all that the report is made from."""
    return hashlib.sha256(json.dumps(dict(records), sort_keys=True).encode()).hexdigest()[:16]


def _pictures(name: str, section: Section) -> list[tuple[str, str, Callable[[Path], object]]]:
    return [(f"{PICTURES}/{name}-{word}.png", *figure) for word, figure in section.figures.items()]


def as_markdown(preset: str, sections: dict[str, Section]) -> str:
    """The text of ``REPRODUCTION.md``."""
    parts = [f"# Reproduction: preset {preset}", *opening(sections), INTRO, ABOUT[preset], overview(sections)]
    for name, section in sections.items():
        parts += [f"## {section.title}", _command(preset, name, section)]
        parts += [f"![{caption}]({path})" for path, caption, _ in _pictures(name, section)]
        parts.append(section.as_markdown())
    return "\n\n".join(parts) + "\n"


def opening(sections: dict[str, Section]) -> list[str]:
    """The paper's claims and what is found of them, before anything else."""
    claims = [claim for section in sections.values() for claim in section.claims]
    done = [claim for claim in claims if claim.status != "not tried"]
    if not done:
        return []
    text = (
        f"What the paper claims, and what these runs say, claim by claim and setting by setting: {counted(claims)}. "
        "Details follow in the sections; differences are in points of test error, above 0 as the paper says."
    )
    return [text, as_table(HEADER, rows(claims), words=True), RULES, INDEPENDENT]


def overview(sections: dict[str, Section]) -> str:
    """What is done of each experiment, and what it took."""
    header = ["", "runs done", "hours of training"]
    rows = [[name, f"{len(s.records)} of {s.wanted}", f"{_hours(s.records):.1f}"] for name, s in sections.items()]
    return as_table(header, rows)


def _hours(records: list[Record]) -> float:
    return sum(record["seconds"] for record in records) / 3600


def _command(preset: str, name: str, section: Section) -> str:
    return f"`python -m experiments run {name} --preset {preset}`: {_about(section)}"


def _about(section: Section) -> str:
    records, done = section.records, f"{len(section.records)} of {section.wanted} runs are done"
    if not records:
        return f"{done}."
    machines = {f"{record['device']}, torch {record['versions']['torch']}" for record in records}
    threads = {f"{record['versions']['threads']}" for record in records}
    images = {
        f"{record['data']['name']}: {record['trained_on']:,} training and {record['test']['images']:,} test images, "
        f"{record['versions'].get('precision', 'float32')}"
        for record in records
    }
    commits = Counter(record.get("commit") for record in records)
    unknown = commits.pop(None, 0)
    said = [f"{commit} ({count})" for commit, count in sorted(commits.items())]
    said += [f"not recorded ({unknown}, before records had it)"] * (unknown > 0)
    return (
        f"{done}, {_hours(records):.1f} hours of training steps ({', '.join(sorted(machines))}, threads of a run: "
        f"{', '.join(sorted(threads))}); {'; '.join(sorted(images))}. Commits of the code, with the number of runs: "
        f"{', '.join(said)}."
    )


STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
img { width: 100%; min-width: 33rem; max-width: 52rem; height: auto; background: white; border-radius: 4px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.92rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.7rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; }
.words th, .words td { text-align: left; white-space: normal; vertical-align: top; }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 7rem; }
code { background: #8882; padding: 0.1rem 0.3rem; border-radius: 3px; overflow-wrap: anywhere; }
nav a { margin-right: 1rem; display: inline-block; } .about { color: #777; }
"""


def as_page(preset: str, sections: dict[str, Section], folder: Path) -> str:
    """The page, with the pictures that are in the folder."""
    body = [f"<h1>anytime: reproduction, preset {preset}</h1>", *map(_block, opening(sections))]
    body.append(f"<p>{_inline(INTRO)}</p>")
    body += [f"<p>{_inline(ABOUT[preset])}</p>", _table(overview(sections))]
    body.append("<nav>" + "".join(f'<a href="#{name}">{name}</a>' for name in sections) + "</nav>")
    for name, section in sections.items():
        body.append(f'<section id="{name}"><h2>{html.escape(section.title)}</h2>')
        body.append(f'<p class="about">{_inline(_command(preset, name, section))}</p>')
        for path, caption, _ in _pictures(name, section):
            picture = base64.b64encode((folder / path).read_bytes()).decode()
            image = f'<img alt="{html.escape(caption)}" src="data:image/png;base64,{picture}">'
            body.append(f'<div class="wide">{image}</div>')
        body += map(_block, section.as_markdown().split("\n\n"))
        body.append("</section>")
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>anytime: reproduction</title><style>{STYLE}</style>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'


def _block(text: str) -> str:
    if text.startswith("|"):
        return _table(text)
    if text.startswith("- "):
        return "<ul>" + "".join(f"<li>{_inline(line[2:])}</li>" for line in text.splitlines()) + "</ul>"
    return f"<p>{_inline(text)}</p>"


def _inline(text: str) -> str:
    text = html.escape(text)
    text = text.replace("&lt;br&gt;", "<br>")
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)


def _table(text: str) -> str:
    header, rule, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines())
    top = "".join(f"<th>{_inline(cell)}</th>" for cell in header)
    lines = ["<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    kind = "" if any(cell.endswith(":") for cell in rule) else ' class="words"'
    return f'<div class="wide"><table{kind}><thead><tr>{top}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
