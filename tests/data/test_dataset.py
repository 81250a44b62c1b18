import pytest
import shared_data
import torch
from hypothesis import given
from hypothesis import strategies as st

import anytime
from anytime.data import augmentation
from anytime.data.dataset import balanced


def images(labels, size=4):
    return anytime.Images(torch.randint(256, (len(labels), 1, size, size), dtype=torch.uint8), torch.tensor(labels))


def test_digits():
    data = anytime.load_data("digits")
    everything = [data.train, data.validation, data.test]
    assert sum(len(split) for split in everything) == 1797
    levels = sum((split.pixels.float() * 16 / 255).round().sum().item() for split in everything)
    assert levels == 561718  # scikit-learn's load_digits().data.sum()
    assert max(split.pixels.max().item() for split in everything) == 255  # as in image files
    seen = data.normalize(data.train.pixels)
    assert seen.mean().abs() < 1e-4
    assert seen.std().item() == pytest.approx(1, abs=1e-3)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
def test_a_balanced_part_is_in_order_and_the_same_again(labels, data):
    labels = torch.tensor(labels)
    n = data.draw(st.integers(1, len(labels)))
    seed = data.draw(st.integers(0, 5))
    part = balanced(labels, n, seed)
    assert torch.equal(part, part.unique())
    assert len(part) == n
    assert torch.equal(part, balanced(labels, n, seed))
    available, taken = labels.bincount(minlength=5), labels[part].bincount(minlength=5)
    short = taken < available  # a class with images left over has about as many as any other
    assert (taken[short] >= taken.max() - 1).all()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: anytime.load_data("digit"), "unknown data 'digit'"),
        (lambda: anytime.load_data("digits").subset(2000), "n=2000 must be an integer from 1 to 1097"),
        (lambda: anytime.load_data("digits").subset(0), "n=0 must be an integer >= 1"),
        (lambda: next(anytime.load_data("digits").batches(images([0]), batch_size=0)), "batch_size=0 must be"),
        (lambda: next(anytime.Data(images([0, 1])).batches(None)), "no validation and no test images; it has: train"),
        (lambda: anytime.Data(images([0, 1])[torch.arange(0)]), "no images in the split 'train'"),
        (lambda: anytime.Images(torch.zeros(2, 4, 4), torch.zeros(2)), "uint8"),
        (lambda: anytime.Data(images([0, 1, 5]), classes=["a", "b"]), "labels from 0 to 5"),
    ],
)
def test_wrong_data_is_told_what_is_right(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_what_is_printed_is_one_line(tmp_path):
    data = anytime.load_data("digits")
    assert repr(data) == "Data('digits': 1,097 train, 200 validation, 500 test images of 1×8×8, 10 classes)"
    assert repr(data.train) == "Images(1,097 of 1×8×8, cpu)"
    shared_data.write_class_folders(tmp_path)
    photos = anytime.load_data(tmp_path)
    assert "27 train" in str(photos)
    assert "\n" not in str(photos)
    assert str(photos.train) == "Stream(27 of 3×224×224, decoded while training)"


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 4), st.data())
def test_pad_crop_cuts_out_where_it_was_told(n, channels, pad, data):
    pixels = torch.randint(1, 256, (n, 5, 6, channels), dtype=torch.uint8)
    down, right = (torch.tensor(data.draw(st.lists(st.floats(0, 0.999), min_size=n, max_size=n))) for _ in range(2))
    cropped = augmentation.pad_crop(pixels, pad, down, right)
    padded = torch.nn.functional.pad(pixels, (0, 0, *(pad,) * 4))
    for image, result, y, x in zip(padded, cropped, down, right, strict=True):
        top, left = int(y * (2 * pad + 1)), int(x * (2 * pad + 1))
        assert torch.equal(result, image[top : top + 5, left : left + 6])


def test_flip_mirrors_where_the_coin_says():
    pixels = torch.randint(256, (4, 5, 6, 3), dtype=torch.uint8)
    flipped = augmentation.flip(pixels, torch.tensor([0.1, 0.6, 0.49, 0.5]))
    assert torch.equal(flipped[[0, 2]], pixels[[0, 2]].flip(2))
    assert torch.equal(flipped[[1, 3]], pixels[[1, 3]])


def test_blur_is_gaussian_and_each_image_has_its_own():
    pixels = torch.zeros(3, 9, 9, 1, dtype=torch.uint8)
    pixels[:, 4, 4] = 255
    blurred = augmentation.blur(pixels, 1.0, torch.tensor([0.0, 0.5, 1.0])).squeeze(-1).float()
    assert torch.equal(blurred[0], pixels[0, ..., 0].float())
    middles = blurred[:, 4, 4]
    assert middles[0] > middles[1] > middles[2]
    offsets = torch.arange(-2, 3).square()
    kernel = torch.exp(-offsets / 2)
    kernel /= kernel.sum()
    assert torch.allclose(blurred[2, 2:7, 2:7], (255 * kernel[:, None] * kernel).round(), atol=1)
    flat = torch.full((1, 8, 8, 3), 77, dtype=torch.uint8)
    assert torch.equal(augmentation.blur(flat, 1.0, torch.tensor([0.9])), flat)


def test_a_part_of_a_batch_is_changed_as_in_the_whole():
    recipe = anytime.Recipe(pad=2, flip=True, blur=1.0)
    pixels = torch.randint(256, (10, 3, 8, 8), dtype=torch.uint8)
    whole = recipe.augmentation(pixels, seed=5, first=0, total=10)
    assert torch.equal(whole[4:7], recipe.augmentation(pixels[4:7], seed=5, first=4, total=10))
    assert not torch.equal(whole, recipe.augmentation(pixels, seed=6, first=0, total=10))


def test_splits_have_images_of_one_size():
    with pytest.raises(anytime.AnytimeError, match="must have images of one size, and have train 1×8×8, test 1×6×6"):
        anytime.Data(images([0, 1], size=8), None, images([0, 1], size=6), ["a", "b"])
