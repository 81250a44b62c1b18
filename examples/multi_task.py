"""Two answers from one image: which digit it is (cross-entropy) and how much it leans, in degrees (squared error).

pip install -e ".[data]"
python examples/multi_task.py                    # about a minute on one core

The images are the 1,797 hand-written digits that come with this library; the slant is that of the second moments of
their ink. Its squared error is in squared degrees, hundreds of times the cross-entropy: the weight scheme goes over
exits × tasks and does not depend on units.
"""

import sys

import torch
from side_by_side import arguments, compare

import anytime
from anytime.errors import AnytimeError
from anytime.losses import MultiTask, Task, absolute, cross_entropy, squared
from anytime.metrics import error

DIGIT, SLANT = slice(0, 10), slice(10, 11)


def slant(pixels: torch.Tensor) -> torch.Tensor:
    """By how many degrees the ink of N × 1 × H × W images leans to the right."""
    ink = pixels[:, 0].double()
    ink = ink / ink.sum((1, 2), keepdim=True)
    down, right = torch.meshgrid(torch.arange(ink.shape[1]), torch.arange(ink.shape[2]), indexing="ij")
    y, x = ((ink * axis).sum((1, 2)) for axis in (down, right))
    off_y, off_x = down - y[:, None, None], right - x[:, None, None]
    mixed, vertical = (ink * off_y * off_x).sum((1, 2)), (ink * off_y.square()).sum((1, 2))
    return torch.rad2deg(torch.atan(-mixed / vertical)).float()


def batches(
    data: anytime.Data, images: anytime.Images, size: int
) -> list[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return [
        (data.normalize(part.pixels), {"digit": part.labels, "slant": slant(part.pixels)})
        for part in (images[rows] for rows in order.split(size))
    ]


def main(given: list[str] | None = None) -> dict[str, dict[str, list[float]]]:
    asked = arguments(__doc__, given, epochs=20, samples=1097)
    data = anytime.load_data("digits").subset(min(asked.samples, 1097))
    train, test = batches(data, data.train, 32), batches(data, data.test, 500)
    loss = MultiTask(Task(cross_entropy, DIGIT, "digit"), Task(squared, SLANT, "slant"))
    measures = {
        "share of wrong digits": Task(error, DIGIT, "digit"),
        "error of the slant (degrees)": Task(absolute, SLANT, "slant"),
    }

    def build() -> anytime.AnytimeNetwork:
        return anytime.create_model("resann-2-8", num_classes=11, in_channels=1)

    return compare(build, train, test, measures, asked, loss=loss, optimizer="adamw", lr=0.01, schedule="linear")


if __name__ == "__main__":
    try:
        main()
    except AnytimeError as error:
        sys.exit(str(error))
