"""Hooks of mkdocs.yml: README.md is the site's home page, with its links made to fit; no comments in pages."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

README = Path(__file__).parent.parent / "README.md"
SITE = {"ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are in the root of the repository."""
    text = re.sub(r"\]\(docs/", "](", README.read_text(encoding="utf-8"))
    files.append(File.generated(config, "index.md", content=text))
    for name in SITE & set(re.findall(r"\]\((\w+(?:\.md)?)\)", text)):
        page = (README.parent / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=page))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Remove the comments around figures: a line that begins with one would begin a new paragraph."""
    return re.sub(r"<!--.*?-->", "", markdown)
