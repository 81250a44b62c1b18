"""Hooks of mkdocs.yml: README.md is the home page, notebooks are pages, long tables fold, the reference has an index."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
SITE = {"ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"}
LONG = 12
"""Rows of a table that is shown whole."""
TABLES = {"convert-models.md", "export-models.md", "task-models.md", "models.md", "operators.md"}
"""Pages that one comes to for a long table."""
OPENING = {"REPRODUCTION.md"}
"""Pages that open with a long table."""

sys.path.insert(0, str(DOCS))
import notebooks  # noqa: E402


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are in the root of the repository, the notebooks' and the index of the reference."""
    text = re.sub(r"\]\(docs/", "](", README.read_text(encoding="utf-8"))
    files.append(File.generated(config, "index.md", content=text))
    for name in SITE & set(re.findall(r"\]\((\w+(?:\.md)?)\)", text)):
        page = (README.parent / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=page))
    for path in notebooks.NOTEBOOKS.glob("*.ipynb"):
        page = notebooks.markdown(json.loads(path.read_text(encoding="utf-8")))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
    logo = (DOCS.parent / "src/anytime/serving/page/icon.svg").read_bytes()
    files.append(File.generated(config, "logo.svg", content=logo))
    files.append(File.generated(config, "reference/index.md", content=reference_index(config["nav"])))
    return files


def reference_index(nav: Any) -> str:
    """A table of all names of the reference by section, in the order of the navigation."""
    (sections,) = (section["Reference"] for section in nav if "Reference" in section)
    lines = ["# Reference", "", "Import everything from `anytime`, unless its name here has a module before it. ", ""]
    lines += ["What is not listed is private and may change.", "", "| section | names |", "|---|---|"]
    for title, place in (item for section in sections if isinstance(section, dict) for item in section.items()):
        if place.endswith("index.md"):
            continue
        page = Path(place).name
        names = re.findall(r"^::: (\S+)", (DOCS / place).read_text(encoding="utf-8"), re.MULTILINE)
        links = ", ".join(f"[`{name.removeprefix('anytime.')}`]({page}#{name})" for name in names)
        lines.append(f"| [{title}]({page}) | {links} |")
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Remove the comments around figures, since a line that begins with one would begin a new paragraph."""
    if page.file.src_uri.startswith("notebooks/"):
        download = f"\n\nThis page is a notebook: [{Path(page.file.src_uri).stem}.ipynb]({{}})\n"
        markdown = re.sub(r"\.ipynb\)", ".md)", markdown) + download.format(f"{Path(page.file.src_uri).stem}.ipynb")
    else:
        markdown = re.sub(r"\]\(((?:\.\./)?notebooks/[\w-]+)\.ipynb\)", r"](\1.md)", markdown)
    return re.sub(r"<!--.*?-->", "", markdown)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Fold long tables; show the roles that docstrings have for Sphinx as code."""
    html = re.sub(r":(?:class|func|meth|mod|attr):(<code>)", r"\1", html)
    if page.file.src_uri in TABLES or page.file.src_uri.startswith("reference/"):
        return html
    html = re.sub(r"<table>.*?</table>", _folded, html, flags=re.S)
    return html.replace("<details>", "<details open>", 1) if page.file.src_uri in OPENING else html


def _folded(match: re.Match[str]) -> str:
    table = match[0]
    rows = table.count("<tr>") - 1
    if rows <= LONG:
        return table
    columns = re.findall(r"<th[^>]*>(.*?)</th>", table, re.S)
    named = ", ".join(name for each in columns if (name := re.sub(r"<[^>]*>", "", each).strip()))
    return f"<details><summary>Table of {rows} rows: {named}</summary>{table}</details>"
