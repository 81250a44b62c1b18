import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import anytime
from anytime import augment


def images(labels, size=4):
    return anytime.Images(torch.randint(256, (len(labels), 1, size, size), dtype=torch.uint8), torch.tensor(labels))


def test_digits():
    data = anytime.load_data("digits")
    everything = [data.train, data.validation, data.test]
    assert sum(len(split) for split in everything) == 1797
    assert sum(split.pixels.sum().item() for split in everything) == 561718  # scikit-learn's load_digits().data.sum()
    seen = data.normalise(data.train.pixels)
    assert seen.mean().abs() < 1e-4
    assert seen.std().item() == pytest.approx(1, abs=1e-3)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
def test_a_subset_is_balanced_in_order_and_the_same_again(labels, data):
    everything = images(labels)
    n = data.draw(st.integers(1, len(labels)))
    seed = data.draw(st.integers(0, 5))
    part = everything.subset(n, seed)
    assert len(part) == n
    assert torch.equal(part.pixels, everything.subset(n, seed).pixels)
    available, taken = torch.tensor(labels).bincount(minlength=5), part.labels.bincount(minlength=5)
    short = taken < available  # a class with images left over has about as many as any other
    assert (taken[short] >= taken.max() - 1).all()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: anytime.load_data("digit"), "unknown data 'digit'"),
        (lambda: anytime.load_data("digits").subset(2000), "1 to 1097"),
        (lambda: anytime.Images(torch.zeros(2, 4, 4), torch.zeros(2)), "uint8"),
        (lambda: anytime.Data(images([0, 1, 5]), classes=["a", "b"]), "labels from 0 to 5"),
    ],
)
def test_wrong_data_is_told_what_is_right(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 4), st.integers(0, 100))
def test_pad_crop_gives_a_window_of_the_padded_image(n, channels, pad, seed):
    pixels = torch.randint(1, 256, (n, channels, 5, 6), dtype=torch.uint8)
    cropped = augment.pad_crop(pixels, pad, torch.Generator().manual_seed(seed))
    padded = torch.nn.functional.pad(pixels, (pad,) * 4)
    for image, result in zip(padded, cropped, strict=True):
        windows = image.unfold(1, 5, 1).unfold(2, 6, 1).movedim(0, 2)
        assert (windows == result).flatten(2).all(2).any()


@given(st.integers(0, 100))
def test_flip_mirrors_about_half(seed):
    pixels = torch.arange(6, dtype=torch.uint8).view(1, 1, 2, 3).repeat(200, 1, 1, 1)
    flipped = augment.flip(pixels, torch.Generator().manual_seed(seed))
    mirrored = (flipped == pixels.flip(-1)).flatten(1).all(1)
    same = (flipped == pixels).flatten(1).all(1)
    assert (mirrored ^ same).all()
    assert 60 < mirrored.sum() < 140
