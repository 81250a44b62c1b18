"""Images in the rows of a table, as parquet files and the Hugging Face Hub have them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from anytime.data.encoded import Encoded
from anytime.data.images import numbered_classes
from anytime.errors import AnytimeError
from anytime.files import read_file


class ImageTable(Encoded):
    """Rows of an Arrow table with a column of images, as the Hub stores them, and a column of labels.

    Args:
        table: the Arrow table.
        features: what the Hub's client knows about each column: its ``_type``, and the ``names`` of classes.
        name: for messages.
        folders: where files may be that rows refer to by path; relative paths start at the first one.
    """

    def __init__(self, table: Any, features: Mapping[str, Any], name: str, folders: Sequence[Path]) -> None:
        image, label = _find_columns(list(table.column_names), features, name)
        column = table.column(label)
        if len(column) == 0:
            raise AnytimeError(f"{name} has no rows")
        if not str(column.type).startswith(("int", "uint")):
            raise AnytimeError(f"{name}: column {label!r} holds {column.type}; labels must be integers >= 0")
        if column.null_count:
            raise AnytimeError(f"{name}: column {label!r} has {column.null_count} rows without a label")
        labels = torch.from_numpy(column.cast("int64").to_numpy().copy())
        classes = [str(name) for name in features.get(label, {}).get("names") or []]
        super().__init__(labels, classes or numbered_classes(int(labels.max()), name))
        wrong = ((labels < 0) | (labels >= len(self.classes))).nonzero()
        if len(wrong) and self.labeled:
            row = int(wrong[0])
            raise AnytimeError(
                f"{name}, row {row}: label {int(labels[row])} is out of range; there are {len(self.classes)} classes, "
                f"numbered from 0 to {len(self.classes) - 1}"
            )
        self.column, self.name, self.folders = table.column(image), name, folders

    def read(self, i: int) -> bytes:
        """The bytes in that row, or of the file that it names."""
        value = self.column[i].as_py()
        content, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if content is None and path:
            file = (self.folders[0] / path).resolve()
            if not any(file.is_relative_to(folder.resolve()) for folder in self.folders):
                raise AnytimeError(f"the path {path} leads outside of the data set's folder")
            return read_file(file)
        if not isinstance(content, bytes) or not content:
            raise AnytimeError("the row has neither the bytes nor the path of an image")
        return content

    def where(self, i: int) -> str:
        """Table and row, counted from 0."""
        return f"{self.name}, row {i}"


def _find_columns(columns: list[str], features: Mapping[str, Any], name: str) -> tuple[str, str]:
    """The columns of images and of labels."""
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
    return images[0], labels[0]
