"""Damaged files of data: `AnytimeError`, or exactly what the damaged file says; never what was cached for another."""

import io
import warnings

import numpy as np
import pyarrow.parquet as pq
import pytest
import shared_data as images
from fuzz import mutations
from PIL import Image

import anytime
from anytime.data import cache
from anytime.data.sources import read_folder
from anytime.decoding import FORMATS

MANY = pytest.param(4000, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about damaged metadata
        yield


def by_pillow(content):
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def one_line_about(path, error):
    assert str(path) in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("n", [200, MANY])
def test_parquet(tmp_path, n):
    images.write_hub_folder(tmp_path / "data", n=20)
    path = tmp_path / "data/train.parquet"
    whole = path.read_bytes()
    anytime.load_data(tmp_path / "data", show=False)  # cached
    read = 0
    for damaged in mutations(whole, seed=0, n=n):
        path.write_bytes(damaged)
        try:
            train = read_folder(tmp_path / "data")["train"]
            pixels = cache.decoded(train, "train", show=False).movedim(1, -1).numpy()
        except anytime.AnytimeError as error:
            one_line_about(path, error)
            continue
        read += 1
        rows = pq.read_table(path)
        assert train.labels.tolist() == rows["label"].to_pylist()
        for i, image in enumerate(rows["img"].to_pylist()):
            assert np.array_equal(pixels[i], by_pillow(image["bytes"]))
    assert 0 < read < n


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("n", [100, MANY])
def test_images(tmp_path, form, n):
    path = tmp_path / f"train/a/0{FORMATS[form][0]}"
    path.parent.mkdir(parents=True)
    whole = images.encoded(images.some_pixels(1, size=24)[0], form)
    path.write_bytes(whole)
    encoded = read_folder(tmp_path)["train"]
    expected = np.asarray(encoded.image(0))
    for damaged in mutations(whole, seed=0, n=n):
        path.write_bytes(damaged)
        try:
            pixels = np.asarray(encoded.image(0))
        except anytime.AnytimeError as error:
            one_line_about(path, error)
            continue
        if form == "PNG":  # the only one with checksums
            assert np.array_equal(pixels, expected)
        else:
            assert np.array_equal(pixels, by_pillow(damaged))


@pytest.mark.parametrize("n", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_cached_pixels(tmp_path, n):
    images.write_hub_folder(tmp_path / "data", n=20)
    train = read_folder(tmp_path / "data")["train"]
    expected = cache.decoded(train, "train", show=False)
    (path,) = (tmp_path / "cache").iterdir()
    for damaged in mutations(path.read_bytes(), seed=0, n=n):
        path.write_bytes(damaged)
        assert cache.decoded(train, "train", show=False).equal(expected)
