"""Images in encoded form, with their labels, wherever they are stored."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from anytime.decoding import decode_image
from anytime.errors import AnytimeError, MissingExtraError

UNLABELED = -1
"""The label of images whose class is not published, as in the test split of ImageNet on the Hub."""


class Encoded(ABC):
    """Images that are decoded when they are asked for.

    Args:
        labels: one class number per image, int64.
        classes: their names.
    """

    def __init__(self, labels: Tensor, classes: list[str]) -> None:
        self.labels, self.classes = labels, classes

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def read(self, i: int) -> bytes:
        """The encoded bytes of image ``i``; raises whatever goes wrong."""

    @abstractmethod
    def where(self, i: int) -> str:
        """Where image ``i`` is, for messages: the file, and the row if it has rows."""

    @property
    def labeled(self) -> bool:
        """Whether the classes of the images are known."""
        return not bool((self.labels == UNLABELED).all())

    def content(self, i: int) -> bytes:
        """The encoded bytes of image ``i``."""
        with self._naming(i):
            return self.read(i)

    def image(self, i: int) -> Any:
        """Image ``i`` as a Pillow image, RGB."""
        with self._naming(i):
            return decode_image(self.read(i))

    @contextmanager
    def _naming(self, i: int) -> Iterator[None]:
        """Turn any error into one that says where image ``i`` is."""
        try:
            yield
        except MissingExtraError:
            raise
        except Exception as error:  # Pillow and Arrow raise many kinds: OSError, SyntaxError, ValueError, …
            raise AnytimeError(f"cannot read the image in {self.where(i)}: {one_line(error)}") from error

    def key(self) -> str:
        """A digest of everything that is decoded: the bytes of all images, in order."""
        digest = hashlib.sha256()
        for i in range(len(self)):
            content = self.content(i)
            digest.update(len(content).to_bytes(8, "little"))
            digest.update(content)
        return digest.hexdigest()[:32]

    def number_by(self, classes: list[str]) -> None:
        """Number the labels by the classes of another split, which must include all of these."""
        if self.classes == classes:
            return
        numbers = {name: i for i, name in enumerate(classes)}
        if len(numbers) < len(classes) or len(set(self.classes)) < len(self.classes):
            raise AnytimeError(f"{self.where(0)}: the splits have different classes, and some have the same name")
        for i in self.labels.unique().tolist():
            if self.classes[i] not in numbers:
                place = self.where(int((self.labels == i).nonzero()[0]))
                raise AnytimeError(f"{place}: class {self.classes[i]!r} is not a class of the training images")
        new = torch.tensor([numbers.get(name, UNLABELED) for name in self.classes])
        self.labels, self.classes = new[self.labels], classes


def one_line(error: BaseException) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
