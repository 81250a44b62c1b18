"""Labelled images as they lie on disk: compressed, in parquet tables or in a folder a class."""

import hashlib
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anytime.errors import AnytimeError, require

SPLITS = {"train": r"train", "extra": r"extra", "test": r"test|val(idation)?|valid"}
"""What a split's files or folders are called."""
_ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".gif", ".tif", ".tiff"}


class Encoded(ABC):
    """Images that are decoded when they are asked for.

    Args:
        labels: one class number an image, int64.
        classes: their names.
    """

    def __init__(self, labels: Tensor, classes: list[str]) -> None:
        self.labels, self.classes = labels, classes

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def read(self, i: int) -> bytes:
        """The compressed bytes of image ``i``."""

    @abstractmethod
    def where(self, i: int) -> str:
        """Where image ``i`` is, for people: the file, and the row if it has rows."""

    @abstractmethod
    def key(self) -> str:
        """A digest of the contents."""

    def number_by(self, classes: list[str]) -> None:
        """Let labels count the classes of another split, which has all of these, by their names."""
        if self.classes == classes:
            return
        for i, name in enumerate(self.classes):
            if name not in classes and bool((self.labels == i).any()):
                place = self.where(int((self.labels == i).nonzero()[0]))
                raise AnytimeError(f"{place}: class {name!r} is not among the training images' classes")
        new = torch.tensor([classes.index(name) if name in classes else -1 for name in self.classes])
        self.labels, self.classes = new[self.labels], classes

    def image(self, i: int) -> Any:
        """Image ``i`` as a Pillow image, RGB."""
        pillow = require("PIL.Image", "data")
        try:
            with pillow.open(io.BytesIO(self.read(i))) as image:
                return image.convert("RGB")
        except Exception as error:  # Pillow raises what its decoders raise: OSError, SyntaxError, ValueError, …
            raise AnytimeError(f"cannot read the image in {self.where(i)}: {error}") from error


class Table(Encoded):
    """Rows of an Arrow table with a column of images, in the Hub's form, and a column of labels."""

    def __init__(self, table: Any, features: Mapping[str, Any], name: str, image: str, label: str) -> None:
        column = table.column(label)
        if len(column) == 0:
            raise AnytimeError(f"{name} has no rows")
        if not str(column.type).startswith(("int", "uint")):
            raise AnytimeError(f"{name}: column {label!r} holds {column.type}; labels are whole numbers from 0")
        if column.null_count:
            raise AnytimeError(f"{name}: column {label!r} has {column.null_count} rows without a label")
        labels = torch.from_numpy(column.to_numpy().astype(np.int64))
        names = list(features.get(label, {}).get("names") or [])
        classes = names or [str(i) for i in range(1 + int(labels.max()))]
        super().__init__(labels, classes)
        wrong = ((labels < 0) | (labels >= len(classes))).nonzero()
        if len(wrong):
            row = int(wrong[0])
            raise AnytimeError(
                f"{name}, row {row}: label {int(labels[row])}, but the classes are 0 to {len(classes) - 1}"
            )
        self.column, self.name = table.column(image), name

    def read(self, i: int) -> bytes:
        """The bytes in that row."""
        value = self.column[i].as_py()
        content = value.get("bytes") if isinstance(value, dict) else value
        if content is None and isinstance(value, dict) and value.get("path"):
            return Path(value["path"]).read_bytes()
        if not content:
            raise AnytimeError("there are no bytes")
        return content

    def where(self, i: int) -> str:
        """Table and row, counted from 0."""
        return f"{self.name}, row {i}"

    def key(self) -> str:
        """A digest of all images and labels."""
        digest = hashlib.blake2b(self.labels.numpy().tobytes(), digest_size=16)
        for chunk in self.column.chunks:
            flat = chunk.field("bytes") if hasattr(chunk, "field") else chunk
            for buffer in flat.buffers():
                if buffer is not None:
                    digest.update(buffer)
        return digest.hexdigest()


class Folder(Encoded):
    """A folder a class, of image files: ILSVRC's form. Classes are the folders' names in alphabetical order."""

    def __init__(self, path: Path) -> None:
        folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
        found = [(file, i) for i, folder in enumerate(folders) for file in sorted(folder.rglob("*")) if _is_image(file)]
        if not found:
            raise AnytimeError(
                f"{path} has no images: expected a folder a class with files such as .jpeg or .png in it"
            )
        self.files = [file for file, _ in found]
        super().__init__(torch.tensor([i for _, i in found]), [folder.name for folder in folders])

    def read(self, i: int) -> bytes:
        """The file."""
        return self.files[i].read_bytes()

    def where(self, i: int) -> str:
        """Its path."""
        return str(self.files[i])

    def key(self) -> str:
        """A digest of all files."""
        digest = hashlib.blake2b(self.labels.numpy().tobytes(), digest_size=16)
        for file in self.files:
            digest.update(hashlib.blake2b(file.read_bytes()).digest())
        return digest.hexdigest()


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in _ENDINGS and not path.name.startswith(".")


def read_folder(path: Path) -> dict[str, Encoded]:
    """The splits in a local folder: parquet files of the Hub's form, or folders of classes below train and test."""
    tables = sorted(path.rglob("*.parquet"))
    if tables:
        splits = _by_split(path, tables)
        return {split: _read_parquet(files) for split, files in splits.items()}
    folders = _by_split(path, sorted(p for p in path.iterdir() if p.is_dir()))
    if not folders:
        raise AnytimeError(
            f"{path} holds no data: expected parquet files (train.parquet, test.parquet) or folders train/CLASS/*.jpeg "
            "and val/CLASS/*.jpeg"
        )
    return {split: Folder(found[0]) for split, found in folders.items()}


def _by_split(root: Path, paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Sort files or folders by the split that their name, or a folder's above, says."""
    found: dict[str, list[Path]] = {}
    for path in paths:
        words = [word for part in reversed(path.relative_to(root).parts) for word in re.split(r"[^a-z]+", part.lower())]
        split = next((s for word in words for s, form in SPLITS.items() if re.fullmatch(form, word)), None)
        if split:
            found.setdefault(split, []).append(path)
    return found


def _read_parquet(files: Sequence[Path]) -> Encoded:
    parquet = require("pyarrow.parquet", "data")
    arrow = require("pyarrow", "data")
    tables = []
    for file in files:
        try:
            tables.append(parquet.read_table(file, memory_map=True))
        except (OSError, arrow.ArrowException) as error:
            raise AnytimeError(f"cannot read {file}: it is truncated or no parquet file ({error})") from error
    name = str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    metadata = (tables[0].schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        features = json.loads(metadata)["info"]["features"] if metadata != b"{}" else {}
        return table_of(arrow.concat_tables(tables), features, name)
    except (arrow.ArrowException, json.JSONDecodeError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise AnytimeError(f"{name}: the files do not fit together or their schema is damaged ({reason})") from error


def table_of(table: Any, features: Mapping[str, Any], name: str) -> Table:
    """Find the columns of images and of labels."""
    columns = list(table.column_names)
    images = [c for c in columns if features.get(c, {}).get("_type") == "Image"] or [
        c for c in ("image", "img", "pixel_values", "jpg", "png") if c in columns
    ]
    labels = [c for c in ("label", "fine_label", "labels", "class", "cls", "target") if c in columns] or [
        c for c in columns if features.get(c, {}).get("_type") == "ClassLabel"
    ]
    if not images or not labels:
        missing = "images" if not images else "labels"
        raise AnytimeError(
            f"{name} has the columns {', '.join(columns)}; none is known to hold {missing} (image, label)"
        )
    return Table(table, features, name, images[0], labels[0])


def read_hub(name: str, config: str | None = None) -> dict[str, Encoded]:
    """The splits of a data set on the Hugging Face Hub, downloaded once."""
    datasets = require("datasets", "data")
    try:
        found = datasets.load_dataset(name, config)
    except Exception as error:  # the Hub's client raises many kinds
        reason = " ".join(str(error).split())[:200]
        raise AnytimeError(f"cannot load {name!r} from the Hugging Face Hub: {reason}") from error
    result: dict[str, Encoded] = {}
    for split, form in SPLITS.items():
        part = next((found[s] for s in found if re.fullmatch(form, s)), None)
        if part is not None:
            raw = {c: f.to_dict() if hasattr(f, "to_dict") else vars(f) for c, f in part.features.items()}
            features = {c: {**raw[c], "_type": type(f).__name__} for c, f in part.features.items()}
            for column, feature in part.features.items():
                if isinstance(feature, datasets.Image):
                    part = part.cast_column(column, datasets.Image(decode=False))
            result[split] = table_of(part.data.table, features, f"{name}, split {split}")
    return result
