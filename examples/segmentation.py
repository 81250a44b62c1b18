"""Which pixels of a scene belong to which digit: a small U-Net with exits that answer at full resolution.

pip install -e ".[data]"
python examples/segmentation.py                  # about a minute on one core

A scene is made of three hand-written digits from 0 to 3 that come with this library, at random places of a noisy
24 × 24 image, one over the other. Its mask is the ink itself: 0 is background, 1 to 4 are the digits. Scenes to test
with are made of digits that are in no scene to train with.
"""

import sys

import torch
from side_by_side import arguments, compare
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import anytime
from anytime.errors import AnytimeError
from anytime.losses import pixel_cross_entropy
from anytime.metrics import iou_error, pixel_error

SIZE, DIGITS, KINDS = 24, 3, 4


def scenes(images: anytime.Images, count: int, seed: int) -> TensorDataset:
    images = images[(images.labels < KINDS).nonzero().squeeze(1)]
    draw = torch.Generator().manual_seed(seed)
    pixels = 0.2 * torch.rand(count, 1, SIZE, SIZE, generator=draw)
    masks = torch.zeros(count, SIZE, SIZE, dtype=torch.long)
    for _ in range(DIGITS):
        which = torch.randint(len(images), (count,), generator=draw)
        places = torch.randint(SIZE - 8, (count, 2), generator=draw)
        for i, (image, (top, left)) in enumerate(zip(which.tolist(), places.tolist(), strict=True)):
            ink = images.pixels[image, 0].float() / 255
            there = (slice(top, top + 8), slice(left, left + 8))
            drawn = ink > 0.25
            pixels[i, 0][there][drawn] = ink[drawn]
            masks[i][there][drawn] = images.labels[image] + 1
    return TensorDataset(pixels - 0.2, masks)


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    """Two levels down, two up, with the features of the way down beside those of the way up."""

    def __init__(self, classes: int, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Sequential(block(1, width), block(width, width))
        self.down = nn.Sequential(block(width, 2 * width, 2), block(2 * width, 2 * width))
        self.bottom = nn.Sequential(block(2 * width, 4 * width, 2), block(4 * width, 4 * width))
        self.up = nn.Upsample(scale_factor=2, mode="bilinear")
        self.middle = block(6 * width, 2 * width)
        self.last = block(3 * width, width)
        self.classify = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits for each pixel."""
        fine = self.first(x)
        coarse = self.down(fine)
        middle = self.middle(torch.cat([self.up(self.bottom(coarse)), coarse], 1))
        return self.classify(self.last(torch.cat([self.up(middle), fine], 1)))


def main(given: list[str] | None = None) -> dict[str, dict[str, list[float]]]:
    asked = arguments(__doc__, given, epochs=8, samples=800)
    data = anytime.load_data("digits")
    assert isinstance(data.train, anytime.Images)
    assert isinstance(data.test, anytime.Images)
    train = DataLoader(scenes(data.train, asked.samples, seed=1), batch_size=8, shuffle=True)
    test = DataLoader(scenes(data.test, min(300, asked.samples), seed=2), batch_size=100)
    measures = {"1 − mean IoU of an image": iou_error, "share of wrong pixels": pixel_error}

    def build() -> anytime.AnytimeNetwork:
        return anytime.convert(
            UNet(KINDS + 1), torch.zeros(1, 1, SIZE, SIZE), exits=["first", "down", "bottom", "middle"]
        )

    recipe = {"optimizer": "adamw", "lr": 0.005, "schedule": "linear", "warmup": 0.1}
    return compare(build, train, test, measures, asked, loss=pixel_cross_entropy, **recipe)


if __name__ == "__main__":
    try:
        main()
    except AnytimeError as error:
        sys.exit(str(error))
