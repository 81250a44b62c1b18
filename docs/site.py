"""Hook of mkdocs.yml: README.md is the site's home page, with its links made to fit."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

README = Path(__file__).parent.parent / "README.md"
SITE = {"ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that stand in the root of the repository."""
    text = re.sub(r"\]\(docs/", "](", README.read_text(encoding="utf-8"))
    files.append(File.generated(config, "index.md", content=text))
    for name in SITE & set(re.findall(r"\]\((\w+(?:\.md)?)\)", text)):
        page = (README.parent / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=page))
    return files
