"""Stored data are found and read, or refused with the place that is wrong."""

import io
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shared_data as images
import torch
from PIL import Image

import anytime
from anytime.data.sources import read_folder, read_hub
from anytime.training.recipe import recipe_for


def caches(tmp_path):
    return sorted((tmp_path / "cache").glob("*"))


def test_parquet_is_read_decoded_and_cached(tmp_path):
    pixels, labels = images.write_hub_folder(tmp_path / "data")
    for _ in range(2):  # decoded, then from the cache
        data = anytime.load_data(str(tmp_path / "data"), show=False)
        assert (len(data.train), len(data.validation), len(data.test)) == (36, 4, 9)
        assert data.classes == ["a", "b", "c"]
        assert np.array_equal(data.train.pixels.movedim(1, -1).numpy(), pixels[:36])
        assert np.array_equal(data.validation.pixels.movedim(1, -1).numpy(), pixels[36:]), "the last training images"
        assert data.train.labels.tolist() == labels[:36]
    assert len(caches(tmp_path)) == 2


def test_small_images_are_averaged_down(tmp_path):
    pixels, _ = images.write_hub_folder(tmp_path / "data")
    small = anytime.load_data(str(tmp_path / "data"), size=4, show=False).train.pixels.movedim(1, -1).float().numpy()
    average = pixels[:36].astype(float).reshape(36, 4, 2, 4, 2, 3).mean((2, 4))
    assert np.abs(small - average).max() <= 0.5


def test_the_hubs_client_reads_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    images.write_hub_folder(tmp_path / "data", column="image", label="fine_label")
    by_client, by_hand = read_hub(str(tmp_path / "data")), read_folder(tmp_path / "data")
    assert by_client.keys() == by_hand.keys()
    for split in by_hand:
        assert torch.equal(by_client[split].labels, by_hand[split].labels)
        assert by_client[split].classes == by_hand[split].classes
        assert by_client[split].read(3) == by_hand[split].read(3)


def test_shards_and_folders_of_splits(tmp_path):
    pixels = images.some_pixels(20)
    images.write_parquet(tmp_path / "data/train-00000-of-00002.parquet", pixels[:10], [0, 1] * 5)
    images.write_parquet(tmp_path / "data/train-00001-of-00002.parquet", pixels[10:], [1, 0] * 5)
    images.write_parquet(tmp_path / "data/validation-00000-of-00001.parquet", pixels[:4], [0] * 4)
    splits = read_folder(tmp_path)
    assert len(splits["train"]) == 20
    assert len(splits["validation"]) == 4


def test_extra_images_join_the_training_ones(tmp_path):
    images.write_hub_folder(tmp_path / "svhn")
    images.write_parquet(tmp_path / "svhn/extra.parquet", images.some_pixels(7, seed=9), [0] * 7)
    assert len(anytime.load_data(str(tmp_path / "svhn"), show=False).train) == 36
    data = anytime.load_data(str(tmp_path / "svhn"), extra=True, show=False)
    assert len(data.train) == 43
    assert len(data.validation) == 4


def test_several_folders_are_one_data_set(tmp_path):
    pixels, labels = images.write_hub_folder(tmp_path / "one")
    more = images.some_pixels(20, seed=5)
    images.write_parquet(tmp_path / "two/train.parquet", more, [0, 2] * 10, names=("c", "b", "a"))
    data = anytime.load_data([tmp_path / "one", str(tmp_path / "two")], show=False)
    assert (len(data.train), len(data.validation), len(data.test)) == (54, 6, 9)
    together = torch.cat([data.train.pixels, data.validation.pixels]).movedim(1, -1).numpy()
    assert np.array_equal(together, np.concatenate([pixels, more])), "one after the other"
    assert torch.cat([data.train.labels, data.validation.labels]).tolist() == labels + [2, 0] * 10, "by their names"


def test_folders_that_do_not_fit_together_are_refused(tmp_path):
    images.write_hub_folder(tmp_path / "one")
    images.write_parquet(tmp_path / "large/train.parquet", images.some_pixels(4, size=16), [0] * 4)
    with pytest.raises(anytime.AnytimeError, match=r"images of one size, and have 3×8×8, 3×16×16; pass size="):
        anytime.load_data([tmp_path / "one", tmp_path / "large"], show=False)
    images.write_parquet(tmp_path / "other/train.parquet", images.some_pixels(4), [0] * 4, names=("d",))
    with pytest.raises(anytime.AnytimeError, match="class 'd' is not a class of the training images"):
        anytime.load_data([tmp_path / "one", tmp_path / "other"], show=False)
    images.write_class_folders(tmp_path / "photos")
    with pytest.raises(anytime.AnytimeError, match="several folders need images of up to 64×64"):
        anytime.load_data([tmp_path / "photos", tmp_path / "photos"], show=False)


def test_validation_is_balanced_where_data_are_sorted_by_class(tmp_path):
    images.write_class_folders(tmp_path / "photos", n=60)
    data = anytime.load_data(str(tmp_path / "photos"))
    assert data.validation.labels.bincount().tolist() == [2, 2, 2]
    assert len(data.train) == 54


def test_a_class_that_is_not_tested_shifts_no_label(tmp_path):
    images.write_class_folders(tmp_path / "photos")
    for file in (tmp_path / "photos/val/a").iterdir():
        file.unlink()
    (tmp_path / "photos/val/a").rmdir()
    data = anytime.load_data(str(tmp_path / "photos"))
    assert data.test.labels.unique().tolist() == [1, 2]


def test_the_last_five_thousand_of_cifar_are_held_out():
    data = anytime.load_data(images.real("cifar10-30k"), size=65)  # streamed, so nothing is decoded
    assert torch.equal(data.train.which, torch.arange(25_000))
    assert torch.equal(data.validation.which, torch.arange(25_000, 30_000))
    assert len(data.classes) == 10
    assert data.test.labels.bincount().tolist() == [1000] * 10


@pytest.mark.slow
def test_the_two_parts_of_cifar_are_the_official_training_set():
    data = anytime.load_data([images.real("cifar10-30k"), images.real("cifar10-rest-20k")], show=False)
    assert (len(data.train), len(data.validation), len(data.test)) == (45_000, 5_000, 10_000)
    every = torch.cat([data.train.labels, data.validation.labels])
    assert every.bincount().tolist() == [5_000] * 10
    assert data.validation.labels.bincount().min() > 450, "balanced enough to choose by"


@pytest.mark.slow
def test_the_held_out_pixels_of_cifar_are_those_of_the_last_rows():
    data = anytime.load_data(images.real("cifar10-30k"), show=False)
    assert (len(data.train), len(data.validation), len(data.test)) == (25_000, 5_000, 10_000)
    rows = pq.read_table(images.real("cifar10-30k") / "train.parquet").slice(25_000)
    assert data.validation.labels.tolist() == rows["label"].to_pylist()
    for i in range(0, 5000, 50):
        pixels = np.asarray(Image.open(io.BytesIO(rows["img"][i]["bytes"].as_py())))
        assert np.array_equal(data.validation.pixels[i].movedim(0, -1).numpy(), pixels)


def test_hundred_classes_and_house_numbers():
    splits = read_folder(images.real("cifar100-20k"))
    assert len(splits["train"].classes) == 100
    assert splits["train"].labels.bincount().tolist() == [200] * 100
    splits = read_folder(images.real("svhn-20k"))
    assert len(splits["test"]) == 10_000
    assert splits["test"].image(0).size == (32, 32)


WRONG = {
    "no such name": ("cifar11", "unknown data"),
    "empty": ("empty", "holds no data"),
    "no test split": ("no_test", "has no split 'test'; it has: train"),
    "truncated": ("truncated", "truncated.*train.parquet|train.parquet.*truncated"),
    "not parquet": ("not_parquet", "no parquet file"),
    "broken image": ("broken", "train.parquet, row 5"),
    "label out of range": (
        "label",
        "train.parquet, row 7: label 9 is out of range; there are 3 classes, numbered from 0 to 2",
    ),
    "no columns": ("columns", "none is known to hold images"),
    "two sizes": ("sizes", "row 3 has 9×9 pixels, the first one 8×8"),
    "broken file": ("photo", "val/b/.*jpeg"),
    "folder without images": ("nothing", "has no images"),
    "no rows": ("rows", "has no rows"),
    "labels are words": ("words", "labels must be integers >= 0"),
    "shards do not fit": ("shards", "do not fit together"),
    "a class that was never trained": ("untrained", "class 'd' is not a class of the training images"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_data_are_refused_with_the_place(case, tmp_path):
    name, says = WRONG[case]
    folder = tmp_path / name
    if name != "cifar11":
        folder.mkdir()
        make_wrong(name, folder)

    def use():
        data = anytime.load_data(str(folder) if folder.is_dir() else name, show=False)
        anytime.evaluate(anytime.create_model("resann26", num_classes=3), data)  # streamed ones are read late

    with pytest.raises(anytime.AnytimeError, match=says):
        use()
    assert not caches(tmp_path), "no half cache"


def make_wrong(name, folder):
    pixels, labels = images.some_pixels(20), [i % 3 for i in range(20)]
    if name in ("empty", "nothing"):
        (folder / ("other" if name == "empty" else "train")).mkdir()
    elif name == "columns":
        images.write_parquet(folder / "train.parquet", pixels, labels, column="img")
        table = pq.read_table(folder / "train.parquet").rename_columns(["a", "b"]).replace_schema_metadata({})
        pq.write_table(table, folder / "train.parquet")
    elif name == "rows":
        images.write_parquet(folder / "train.parquet", pixels, labels)
        images.write_parquet(folder / "test.parquet", [], [])
    elif name in ("words", "shards"):
        import pyarrow as pa

        images.write_parquet(folder / "train-0.parquet", pixels, labels)
        table = pq.read_table(folder / "train-0.parquet")
        other = table.set_column(1, "label", pa.array(["cat"] * 20)) if name == "words" else table.drop_columns("label")
        pq.write_table(other, folder / ("train-0.parquet" if name == "words" else "train-1.parquet"))
        images.write_parquet(folder / "test.parquet", pixels[:5], [0] * 5)
    elif name == "untrained":
        images.write_class_folders(folder)
        (folder / "val/d").mkdir()
        (folder / "val/d/0.png").write_bytes(images.encoded(pixels[0]))
    elif name == "photo":
        images.write_class_folders(folder)
        broken = next((folder / "val/b").iterdir())
        broken.write_bytes(broken.read_bytes()[:200])
    else:
        broken = (5,) if name == "broken" else ()
        labels[7] = 9 if name == "label" else labels[7]
        images.write_parquet(folder / "train.parquet", pixels, labels, broken=broken)
        if name == "sizes":
            images.write_parquet(folder / "train.parquet", [*pixels[:3], *images.some_pixels(9, size=9)], labels[:12])
        if name != "no_test":
            images.write_parquet(folder / "test.parquet", pixels[:5], [0] * 5)
        path = folder / "train.parquet"
        if name == "truncated":
            path.write_bytes(path.read_bytes()[:-100])
        if name == "not_parquet":
            path.write_text("hello")


@pytest.mark.parametrize("name", ["/nowhere", "./x", "../x", "x/y/z", "~/no/such/folder", "/nowhere/"])
def test_a_folder_that_is_not_there_is_said_to_be_missing(name, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(anytime.AnytimeError, match=f"no such folder: {os.path.abspath(os.path.expanduser(name))}"):
        anytime.load_data(name)


@pytest.mark.parametrize("size", [0, -1, 1.5, "32", True])
def test_arguments_are_checked(tmp_path, size):
    images.write_hub_folder(tmp_path / "data")
    with pytest.raises(anytime.AnytimeError, match=r"^size=.* must be an integer >= 1$"):
        anytime.load_data(tmp_path / "data", size=size)
    with pytest.raises(anytime.AnytimeError, match=r"name=3 must be a string"):
        anytime.load_data(3)
    with pytest.raises(anytime.AnytimeError, match=r"name=\[\] must be a string"):
        anytime.load_data([])
    with pytest.raises(anytime.AnytimeError, match=r"use load_data\('digits'\)"):
        anytime.load_data("digits", size=16)


@pytest.mark.parametrize("what", ["file", "pipe", "/dev/zero"])
def test_the_folder_must_be_one(tmp_path, what):
    path = tmp_path / "data"
    if what == "file":
        path.write_text("no folder")
    elif what == "pipe":
        os.mkfifo(path)
    with pytest.raises(anytime.AnytimeError, match="is not a folder"):
        anytime.load_data(what if what.startswith("/") else path)


@pytest.mark.parametrize("what", ["pipe", "/dev/zero", "large"])
@pytest.mark.parametrize("place", ["train.parquet", "train/a/0.png", "by path"])
def test_only_regular_files_of_reasonable_size_are_read(tmp_path, what, place):
    if place == "by path":
        write_paths(tmp_path / "train.parquet", ["0.png"])
        path = tmp_path / "0.png"
    else:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
    if what == "pipe":
        os.mkfifo(path)
    elif what == "large":
        with path.open("wb") as file:
            file.truncate(2**40)  # takes no room on disk
    else:
        path.symlink_to(what)
    with pytest.raises(anytime.AnytimeError, match=r"not a regular file|more than|no parquet file|leads outside"):
        read_folder(tmp_path)["train"].image(0)


def write_paths(file, paths):
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    rows = [{"bytes": None, "path": str(path)} for path in paths]
    pq.write_table(
        pa.table({"image": pa.array(rows, kind), "label": pa.array([i % 2 for i in range(len(paths))])}), file
    )


def test_images_by_path(tmp_path):
    pixels = images.some_pixels(30)
    (tmp_path / "data/files").mkdir(parents=True)
    paths = [tmp_path / f"data/files/{i}.png" for i in range(30)]
    for path, image in zip(paths, pixels, strict=True):
        path.write_bytes(images.encoded(image))
    write_paths(tmp_path / "data/train.parquet", [path.relative_to(tmp_path / "data") for path in paths[:20]])
    write_paths(tmp_path / "data/test.parquet", paths[20:])  # paths may also be absolute
    data = anytime.load_data(tmp_path / "data", show=False)
    assert np.array_equal(data.train.pixels.movedim(1, -1).numpy(), pixels[:18])
    assert np.array_equal(data.test.pixels.movedim(1, -1).numpy(), pixels[20:])


@pytest.mark.parametrize("path", ["../secret.png", "/{outside}/secret.png", "link/secret.png"])
def test_paths_stay_inside_the_data_set(tmp_path, path):
    (tmp_path / "data").mkdir()
    (tmp_path / "secret.png").write_bytes(images.encoded(images.some_pixels(1)[0]))
    (tmp_path / "data/link").symlink_to(tmp_path)
    write_paths(tmp_path / "data/train.parquet", [path.replace("/{outside}", str(tmp_path))])
    with pytest.raises(anytime.AnytimeError, match=r"train.parquet, row 0: the path .* leads outside"):
        read_folder(tmp_path / "data")["train"].image(0)


@pytest.mark.parametrize("label", [10**12, 2**63 - 1, -(2**63)])
def test_one_huge_label_is_refused(tmp_path, label):
    images.write_parquet(tmp_path / "train.parquet", images.some_pixels(3), [0, label, 1], names=())
    with pytest.raises(anytime.AnytimeError, match=f"label {label} is out of range"):
        read_folder(tmp_path)
    labels = torch.tensor([0, label, 1])
    with pytest.raises(anytime.AnytimeError, match="label"):
        anytime.Data(anytime.Images(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), labels))


@contextmanager
def unreadable(path):
    """A path that may not be read, also if the tests run as root."""
    mode = path.stat().st_mode
    root = os.geteuid() == 0
    path.chmod(0)
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        path.chmod(mode)


@pytest.fixture
def open_folder():
    """A temporary folder that other users may read, unlike pytest's own."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("what", [".", "train", "train/b", "train/b/001.jpeg", "parquet/train.parquet"])
def test_what_may_not_be_read_is_named(open_folder, what):
    images.write_class_folders(open_folder)
    images.write_parquet(open_folder / "parquet/train.parquet", images.some_pixels(3), [0, 1, 2])
    folder = open_folder / "parquet" if what.startswith("parquet") else open_folder
    if folder == open_folder:
        shutil.rmtree(folder / "parquet")
    path = open_folder / what
    read_folder(folder)["train"].image(0)  # imports everything
    with unreadable(path), pytest.raises(anytime.AnytimeError, match=f"{path}.*Permission denied"):
        read_folder(folder)["train"].key()


@pytest.mark.parametrize(
    ("name", "streamed", "recipe"),
    [("cifar10-30k", False, "cifar"), ("SVHN", False, "svhn"), ("photos", True, "imagenet"), ("mnist", False, "cifar")],
)
def test_recipes_suit_the_data(name, streamed, recipe):
    assert recipe_for(name, streamed) == recipe


def test_the_papers_recipes():
    cifar, svhn, imagenet = (anytime.training.recipe.RECIPES[name] for name in ("cifar", "svhn", "imagenet"))
    assert (cifar.epochs, svhn.epochs, imagenet.epochs) == (300, 60, 90)
    assert [round(imagenet.lr_at(e), 4) for e in (0, 29, 30, 59, 60, 89)] == [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    assert [round(cifar.lr_at(e), 4) for e in (0, 149, 150, 224, 225, 299)] == [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    assert cifar.schedule == "steps"
    assert cifar.warmup == 0
    assert cifar.flip
    assert not svhn.flip
    assert svhn.blur > 0
    assert all(r.momentum == 0.9 and r.weight_decay == 1e-4 for r in (cifar, svhn, imagenet))
