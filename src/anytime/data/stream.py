"""Large images: decoded, cropped and mirrored by worker processes while the network trains."""

import signal
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from anytime.data.augmentation import Augmentation, mix
from anytime.data.encoded import Encoded
from anytime.data.images import Images, Take
from anytime.distributed import cores
from anytime.errors import AnytimeError, check_integer, require
from anytime.preprocessing import center_crop

CROP = 7 / 8
"""What is kept of height and width for evaluation: 224 of 256 pixels."""


@dataclass(frozen=True, repr=False)
class Stream:
    """A split of images that are too large, or too different in size, to be held decoded.

    For training, each is cropped at random (8 % to 100 % of its area, 3:4 to 4:3 in shape), resized and mirrored at
    random; for evaluation, its shorter side is resized to 8/7 of the size and the center is cropped: the usual
    treatment of ILSVRC (256 and 224).

    Args:
        encoded: the stored images.
        which: indices of those that are in this split, in order.
        size: height and width that they are resized to, at least 8.
        workers: number of processes that decode; 0 decodes in the calling one. Default: one per CPU core.
    """

    encoded: Encoded
    which: Tensor
    size: int = 224
    workers: int = field(default_factory=cores)

    def __post_init__(self) -> None:
        check_integer("size", self.size, 8)
        check_integer("workers", self.workers, 0)

    def __repr__(self) -> str:
        return f"Stream({len(self):,} of {'×'.join(map(str, self.shape))}, decoded while training)"

    def __len__(self) -> int:
        return len(self.which)

    @property
    def labels(self) -> Tensor:
        """The class numbers."""
        return self.encoded.labels[self.which]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width after resizing."""
        return 3, self.size, self.size

    def __getitem__(self, which: Tensor | slice) -> "Stream":
        return Stream(self.encoded, self.which[which], self.size, self.workers)

    def to(self, _device: torch.device) -> "Stream":
        """The stream itself: images are decoded into host memory on every device."""
        return self

    def batches(self, takes: Iterable[Take], augmentation: Augmentation | None = None) -> Iterator[Images]:
        """One batch after the other, decoded ahead; with an augmentation, cropped and mirrored at random."""
        jobs = [
            [(int(self.which[i]), mix(take.seed, take.first + place)) for place, i in enumerate(take.indices.tolist())]
            for take in takes
        ]
        augmentation = augmentation or Augmentation(crop=False)
        crops = _Crops(self.encoded, self.size, augmentation.crop, augmentation.flip)
        loader = DataLoader(crops, batch_sampler=jobs, num_workers=self.workers, collate_fn=_collate)
        for batch in _watched(loader):
            if isinstance(batch, str):  # what went wrong in a worker, without the stack trace that it would add
                raise AnytimeError(batch)
            yield batch


def _watched(loader: DataLoader[Any]) -> Iterator[Any]:
    """The batches of a loader; AnytimeError if one of its processes is killed."""
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGCHLD) if main and hasattr(signal, "SIGCHLD") else None
    batches = iter(loader)
    if handler is not None:
        # The loader installs one that raises an error wherever the program happens to be, say in the middle of an
        # update. Without it, the error comes from the next batch, after five seconds at most.
        signal.signal(signal.SIGCHLD, handler)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise AnytimeError(
                f"a process that decodes images was killed; is there enough memory? ({str(error).splitlines()[0]})"
            ) from error
        yield batch


class _Crops(Dataset[Any]):
    """Decoded and cropped images by (index, seed)."""

    def __init__(self, encoded: Encoded, size: int, random: bool, flip: bool) -> None:
        self.encoded, self.size, self.random, self.flip = encoded, size, random, flip

    def __getitem__(self, job: tuple[int, int]) -> tuple[np.ndarray, int] | str:
        index, seed = job
        try:
            image = self.encoded.image(index)
        except AnytimeError as error:
            return str(error)
        draw = np.random.default_rng(seed)
        if self.random:
            image = self._random_crop(image, draw)
        else:
            image = center_crop(image, (self.size, self.size), CROP)
        if self.flip and draw.random() < 0.5:
            image = image.transpose(require("PIL.Image", "data").Transpose.FLIP_LEFT_RIGHT)
        return np.array(image), int(self.encoded.labels[index])

    def _random_crop(self, image: Any, draw: np.random.Generator) -> Any:
        pillow = require("PIL.Image", "data")
        width, height = image.size
        box = _random_box(width, height, draw)
        return image.resize((self.size, self.size), pillow.Resampling.BILINEAR, box=box, reducing_gap=2.0)


def _random_box(width: int, height: int, draw: np.random.Generator) -> tuple[float, float, float, float]:
    for _ in range(10):
        area = width * height * draw.uniform(0.08, 1.0)
        ratio = np.exp(draw.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = draw.integers(0, width - w + 1), draw.integers(0, height - h + 1)
            return left, top, left + w, top + h
    side = min(width, height)  # a shape so extreme that no crop fitted: the center
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def _collate(samples: list[tuple[np.ndarray, int] | str]) -> Images | str:
    if wrong := [sample for sample in samples if isinstance(sample, str)]:
        return wrong[0]
    pixels = torch.from_numpy(np.stack([sample[0] for sample in samples])).movedim(-1, 1)
    return Images(pixels, torch.tensor([sample[1] for sample in samples]))
