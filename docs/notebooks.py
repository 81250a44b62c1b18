"""Notebooks: run them, and show them as pages of the site.

python docs/notebooks.py                    # run all in docs/notebooks, and keep what their cells show
python docs/notebooks.py ten-minutes        # or some
"""

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parent / "notebooks"
_TERMINAL = re.compile(r"\x1b\[[0-9;]*m")


def run(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The notebook with what its cells show when they are run in a folder; a cell that raises ends it."""
    import nbformat
    from nbclient import NotebookClient

    node = nbformat.reads(json.dumps(notebook), as_version=4)
    NotebookClient(node, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    for cell in node.cells:
        cell.metadata.clear()  # when each cell was run
    node.metadata.pop("widgets", None)
    return json.loads(nbformat.writes(node))


def markdown(notebook: dict[str, Any]) -> str:
    """A notebook as a page: text, code, and below each cell what it showed."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _parts(cell)) + "\n"


def _parts(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            text = _TERMINAL.sub("", "".join(output["text"])).rstrip()
            yield f"```text\n{text}\n```"
            continue
        data = output["data"]
        if "image/png" in data:
            yield f'<img alt="what this cell draws" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
        elif "text/html" in data:
            yield f'<div class="output">{"".join(data["text/html"])}</div>'
        else:
            yield f"```text\n{''.join(data['text/plain'])}\n```"


def main() -> None:
    """The command."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not sys.argv[1:] or path.stem in sys.argv[1:]:
            print(path.name, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                done = run(json.loads(path.read_text(encoding="utf-8")), Path(folder))
            path.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
