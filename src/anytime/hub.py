"""Models on the Hugging Face Hub: ``hf://owner/name``, with a card that shows the anytime curve."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from anytime.errors import AnytimeError, require
from anytime.evaluation import Curve
from anytime.network import Network, name_of
from anytime.plotting import plot_curves

FILES = ("config.json", "model.safetensors", "policy.json", "profile.json")
"""What is read from the Hub: safetensors and JSON, nothing else."""


class Address(NamedTuple):
    """A model on the Hub."""

    repository: str
    revision: str | None

    def __str__(self) -> str:
        return f"hf://{self.repository}" + (f"@{self.revision}" if self.revision else "")


def address(text: Any) -> Address | None:
    """The repository and revision of ``hf://owner/name`` or ``hf://owner/name@revision``; None for other texts.

    Examples:
        >>> address("hf://someone/resann@v1.0")
        Address(repository='someone/resann', revision='v1.0')
        >>> address("runs/mine")
    """
    if not isinstance(text, str) or not text.startswith("hf://"):
        return None
    match = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", text)
    if match is None:
        raise AnytimeError(f"{text}: expected hf://owner/name, or hf://owner/name@revision (a commit, tag or branch)")
    return Address(match[1], match[2])


def fetch(where: Address) -> tuple[Path, Address]:
    """Download a model, or find it in the client's cache; returns its folder, and its address at the exact commit."""
    hub = require("huggingface_hub", "hub")
    try:
        folder = hub.snapshot_download(where.repository, revision=where.revision, allow_patterns=list(FILES))
    except Exception as error:  # the client's own, and those of the network under it
        reason = " ".join(str(error).split())
        raise AnytimeError(f"{where} cannot be loaded: {type(error).__name__}: {reason[:300]}") from error
    return Path(folder), Address(where.repository, Path(folder).name)


@contextmanager
def prepared(net: Network, where: Address, curve: Curve | None) -> Iterator[Path]:
    """A folder for the model's files, with its card and picture in it already."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        if curve is not None:
            plot_curves({where.repository: curve}, path / "curve.png", where.repository)
        (path / "README.md").write_text(card(net, where, curve), encoding="utf-8")
        yield path


def publish(folder: Path, where: Address) -> str:
    """Upload a folder as one commit; a repository that does not exist is created as a private one."""
    hub = require("huggingface_hub", "hub")
    try:
        hub.create_repo(where.repository, private=True, exist_ok=True)
        done = hub.upload_folder(
            repo_id=where.repository,
            folder_path=folder,
            revision=where.revision,
            commit_message="Anytime network",
            allow_patterns=[*FILES, "README.md", "curve.png"],
        )
    except Exception as error:
        reason = " ".join(str(error).split())
        raise AnytimeError(f"{where} cannot be written: {type(error).__name__}: {reason[:300]}") from error
    return f"hf://{where.repository}@{done.oid}"


def card(net: Network, where: Address, curve: Curve | None) -> str:
    """The model's card, in Markdown."""
    name = name_of(net.config) or type(net).__name__
    lines = [
        "---",
        "library_name: anytime",
        "tags: [anytime-prediction, early-exit]",
        "---",
        "",
        f"# {where.repository}",
        "",
        f"`{name}` with {net.exits} exits: a valid prediction early, a better one the longer it runs.",
        "",
        "```python",
        "import anytime",
        f'net = anytime.load("hf://{where.repository}")',
        "anytime.predict(net, net.preprocess(image), deadline=0.02)",
        "```",
    ]
    if curve is not None:
        lines += [
            "",
            "![error against cost](curve.png)",
            "",
            f"| exit | % of the cost | {curve.metric} |",
            "|---|---|---|",
        ]
        for exit, (share, error) in enumerate(zip(curve.costs.fractions, curve.errors, strict=True)):
            lines.append(f"| {exit + 1} | {100 * share:.1f} | {'not evaluated' if error is None else f'{error:.4g}'} |")
        lines += ["", f"Measured on {curve.images:,} samples."]
    if net.preprocessing and net.preprocessing.classes:
        classes = net.preprocessing.classes
        shown = ", ".join(classes[:20]) + (", …" if len(classes) > 20 else "")
        lines += ["", f"{len(classes)} classes: {shown}."]
    return "\n".join(lines) + "\n"
