"""Images in one folder per class."""

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from anytime.data.encoded import UNLABELED, Encoded
from anytime.decoding import FORMATS
from anytime.errors import AnytimeError
from anytime.files import read_file

_ENDINGS = {ending for endings in FORMATS.values() for ending in endings}

logger = logging.getLogger(__name__)


class Folder(Encoded):
    """One folder of image files per class, as ILSVRC has them. Classes are in alphabetical order.

    Images that are in no class's folder have no label; where others do, they are reported and left out.

    Args:
        paths: of the split, each with folders of classes in it.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        inside = [entry for path in paths for entry in entries(path)]
        folders = sorted((entry for entry in inside if entry.is_dir()), key=lambda entry: entry.name)
        classes = sorted({folder.name for folder in folders})
        found = [(file, classes.index(folder.name)) for folder in folders for file in sorted(files(Path(folder)))]
        loose = [(Path(entry), UNLABELED) for entry in inside if not entry.is_dir() and _is_image(entry)]
        images = [(file, label) for file, label in found if _is_image(file)] or sorted(loose)
        if not images:
            raise AnytimeError(
                f"{paths[0]} has no images: expected one folder per class with files such as .jpeg or .png in it"
            )
        self.files = [file for file, _ in images]
        super().__init__(torch.tensor([label for _, label in images]), classes)
        unused = {file for file, _ in found + loose}.difference(self.files)
        if unused:
            logger.warning(
                "%s: %d files are not used, such as %s: not an image, or not in the folder of a class",
                paths[0],
                len(unused),
                min(unused),
            )

    def read(self, i: int) -> bytes:
        """The file."""
        return read_file(self.files[i])

    def where(self, i: int) -> str:
        """Its path."""
        return str(self.files[i])


def _is_image(path: os.PathLike[str]) -> bool:
    return os.path.splitext(path)[1].lower() in _ENDINGS


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, but hidden files and folders."""
    try:
        with os.scandir(folder) as found:
            return [entry for entry in found if not entry.name.startswith(".")]
    except OSError as error:
        raise AnytimeError(f"cannot read the folder {folder}: {error}") from error


def files(folder: Path) -> Iterator[Path]:
    """All files below a folder, but hidden ones. Links to other folders are not followed."""
    folders = [folder]
    while folders:
        for entry in entries(folders.pop()):
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry))
            elif not entry.is_dir():
                yield Path(entry)
