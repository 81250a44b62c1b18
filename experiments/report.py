"""All records, as a page for browsers and as Markdown."""

import base64
import html
import re
from collections.abc import Callable
from pathlib import Path

from anytime.files import write_text
from experiments import EXPERIMENTS, load
from experiments.records import Record, Records, Section

INTRO = """The paper's tables and figures, run with this library. Each number below is made from the records of training
runs in `experiments/records` by `anytime report`; a record holds the command, versions, seed, seconds and every exit's
errors."""
PICTURES = "reproduction"
SETTINGS = {
    "laptop": """The setting is small, so that two processor cores finish every experiment in a night: images averaged
down to 16×16, 15,000 of them, 8 epochs of batch 32, the paper's optimiser and learning rates, padding in proportion, no
blur, networks of about 4 million multiply-accumulates. Where it says "few images, often", 3,000 images and 150 epochs
of batch 128. The paper's own setting is `--preset paper`; it has not been run.""",
    "paper": """The paper's own setting: all images at their full size, its models, its recipes.""",
}


def write_report(preset: str, records: Records, folder: Path) -> None:
    """Write ``REPRODUCTION.md`` with pictures beside it, and one HTML page with everything in it.

    Args:
        preset: ``laptop`` or ``paper``: whose runs.
        records: what is finished.
        folder: where to.
    """
    sections = {name: load(name).show(preset, records) for name in EXPERIMENTS}
    pictures = {path: draw for name, section in sections.items() for path, _, draw in _pictures(name, section)}
    (folder / PICTURES).mkdir(parents=True, exist_ok=True)
    for path, draw in pictures.items():
        draw(folder / path)
    for old in (folder / PICTURES).glob("*.png"):
        if f"{PICTURES}/{old.name}" not in pictures:
            old.unlink()
    write_text(folder / "REPRODUCTION.md", as_markdown(preset, sections))
    write_text(folder / "reproduction.html", as_page(preset, sections, folder))


def _pictures(name: str, section: Section) -> list[tuple[str, str, Callable[[Path], object]]]:
    return [(f"{PICTURES}/{name}-{word}.png", *figure) for word, figure in section.figures.items()]


def as_markdown(preset: str, sections: dict[str, Section]) -> str:
    """The text of ``REPRODUCTION.md``."""
    parts = [f"# Reproduction: preset {preset}", INTRO, SETTINGS[preset]]
    for name, section in sections.items():
        parts += [f"## {section.title}", f"`anytime reproduce {name} --preset {preset}`. {_about(section.records)}"]
        parts += [f"![{caption}]({path})" for path, caption, _ in _pictures(name, section)]
        parts += section.text
    return "\n\n".join(parts) + "\n"


def _about(records: list[Record]) -> str:
    if not records:
        return "Not run yet."
    hours = sum(record["seconds"] for record in records) / 3600
    machines = {f"{record['device']}, torch {record['versions']['torch']}" for record in records}
    threads = {f"{record['versions']['threads']}" for record in records}
    images = {
        f"{record['data']['name']}: {record['trained_on']:,} training and {record['test']['images']:,} test images"
        for record in records
    }
    return (
        f"{len(records)} run{'s' * (len(records) > 1)}, {hours:.1f} hours of training steps "
        f"({', '.join(sorted(machines))}, threads of a run: {', '.join(sorted(threads))}); "
        f"{'; '.join(sorted(images))}."
    )


STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
img { width: 100%; min-width: 33rem; max-width: 52rem; height: auto; background: white; border-radius: 4px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.92rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.7rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 7rem; }
code { background: #8882; padding: 0.1rem 0.3rem; border-radius: 3px; overflow-wrap: anywhere; }
nav a { margin-right: 1rem; display: inline-block; } .about { color: #777; }
"""


def as_page(preset: str, sections: dict[str, Section], folder: Path) -> str:
    """The page, with the pictures that are in the folder."""
    body = [f"<h1>anytime: reproduction, preset {preset}</h1>", f"<p>{_inline(INTRO)}</p>"]
    body.append(f"<p>{_inline(SETTINGS[preset])}</p>")
    body.append("<nav>" + "".join(f'<a href="#{name}">{name}</a>' for name in sections) + "</nav>")
    for name, section in sections.items():
        body.append(f'<section id="{name}"><h2>{html.escape(section.title)}</h2>')
        command = f"`anytime reproduce {name} --preset {preset}`. {_about(section.records)}"
        body.append(f'<p class="about">{_inline(command)}</p>')
        for path, caption, _ in _pictures(name, section):
            picture = base64.b64encode((folder / path).read_bytes()).decode()
            image = f'<img alt="{html.escape(caption)}" src="data:image/png;base64,{picture}">'
            body.append(f'<div class="wide">{image}</div>')
        body += [_table(text) if text.startswith("|") else f"<p>{_inline(text)}</p>" for text in section.text]
        body.append("</section>")
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>anytime: reproduction</title><style>{STYLE}</style>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'


def _inline(text: str) -> str:
    text = html.escape(text)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)


def _table(text: str) -> str:
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines())
    top = "".join(f"<th>{_inline(cell)}</th>" for cell in header)
    lines = ["<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
