"""One rule for the splits of parquet files, image folders and the Hub: nothing is merged or dropped in silence."""

import logging

import pytest
import shared_data as images
from hypothesis import given
from hypothesis import strategies as st

import anytime
from anytime.data.sources import from_datasets, read_folder
from anytime.data.splits import group_by_split

NAMES = {"train": "train", "val": "validation", "validation": "validation", "test": "test", "extra": "extra"}


@given(st.sampled_from(list(NAMES)), st.integers(1, 5), st.sampled_from(["", "data/", "a/b/"]), st.booleans())
def test_shards_make_one_split(name, n, folder, hashed):
    digest = "-0123456789abcdef" if hashed else ""
    shards = [f"{folder}{name}-{i:05}-of-{n:05}{digest}.parquet" for i in range(n)]
    assert group_by_split(shards, "here") == {NAMES[name]: shards}
    inside = [f"{folder}{name}/{word}.parquet" for word in ("first", "second", "0000")]
    assert group_by_split(inside, "here") == {NAMES[name]: inside}


PARTS = st.text("abtrainvles0123_-", min_size=1, max_size=8)


@given(st.lists(st.lists(st.sampled_from(["train", "val", "test", "x"]) | PARTS, max_size=3, min_size=1), max_size=6))
def test_every_path_is_used_reported_or_refused(paths):
    paths = sorted({"/".join(parts) for parts in paths})
    with pytest.MonkeyPatch.context() as patch:
        reports = []
        patch.setattr("anytime.data.splits.logger.warning", lambda text, *values: reports.append(text % values))
        try:
            used = [path for group in group_by_split(paths, "here").values() for path in group]
        except anytime.AnytimeError:
            return
    unused = set(paths) - set(used)
    assert len(used) + len(unused) == len(paths)
    assert len(reports) == (1 if unused else 0)


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        (["train", "train_small"], "both train and train_small name the split 'train'"),
        (["train", "train_1"], "name the split 'train'"),
        (["coarse/train.parquet", "fine/train.parquet"], "coarse/train.parquet and fine/train.parquet"),
        (["cifar10/test.parquet", "cifar100/test.parquet"], "name the split 'test'"),
        (["val", "validation"], "both val and validation"),
        (["train_val"], "train_val names two splits, train and validation"),
    ],
)
def test_what_may_not_be_one_split_is_refused(paths, says):
    with pytest.raises(anytime.AnytimeError, match=says):
        group_by_split(paths, "here")


def write_three_splits(folder):
    for seed, (split, n) in enumerate({"train": 30, "validation": 4, "test": 9}.items()):
        images.write_parquet(folder / f"{split}.parquet", images.some_pixels(n, seed), [i % 3 for i in range(n)])


def test_validation_and_test_are_used_as_such(tmp_path):
    write_three_splits(tmp_path / "data")
    data = anytime.load_data(tmp_path / "data", show=False)
    assert [len(split) for split in (data.train, data.validation, data.test)] == [30, 4, 9]
    pixels = data.validation.pixels.movedim(1, -1).numpy()
    assert (pixels == images.some_pixels(4, seed=1)).all()


def test_a_hidden_copy_is_ignored(tmp_path):
    write_three_splits(tmp_path / "data")
    write_three_splits(tmp_path / "data/.cache/huggingface")
    images.write_parquet(tmp_path / "data/.train.parquet", images.some_pixels(3), [0, 1, 2])
    assert len(anytime.load_data(tmp_path / "data", show=False).train) == 30


def test_numbered_folders_are_joined(tmp_path):
    images.write_class_folders(tmp_path / "one")
    images.write_class_folders(tmp_path / "two", n=12)
    (tmp_path / "one/train").rename(tmp_path / "one/train_1")
    (tmp_path / "two/train").rename(tmp_path / "one/train_2")
    (tmp_path / "one/train_2/c").rename(tmp_path / "one/train_2/d")
    (tmp_path / "one/.train_3").mkdir()
    train = read_folder(tmp_path / "one")["train"]
    assert train.classes == ["a", "b", "c", "d"]
    assert train.labels.bincount().tolist() == [14, 14, 10, 4]
    assert len(set(train.files)) == 42


def test_what_is_no_split_is_reported(tmp_path, caplog):
    images.write_hub_folder(tmp_path / "data")
    images.write_parquet(tmp_path / "data/other.parquet", images.some_pixels(3), [0, 1, 2])
    data = anytime.load_data(tmp_path / "data", show=False)
    assert len(data.train) + len(data.validation) == 40
    assert "other.parquet" in caplog.text
    images.write_class_folders(tmp_path / "photos")
    (tmp_path / "photos/train/a/notes.txt").write_text("no image")
    (tmp_path / "photos/train/loose.png").write_bytes(images.encoded(images.some_pixels(1)[0]))
    caplog.clear()
    assert len(read_folder(tmp_path / "photos")["train"]) == 30
    assert "2 files are not used, such as" in caplog.text


@pytest.mark.parametrize("form", ["parquet", "folder"])
def test_without_labels_test_is_not_used(tmp_path, caplog, form):
    if form == "parquet":  # as ImageNet on the Hub: the classes of its test images are not published
        write_three_splits(tmp_path / "data")
        images.write_parquet(tmp_path / "data/test.parquet", images.some_pixels(9), [-1] * 9)
    else:
        images.write_class_folders(tmp_path / "data")
        (tmp_path / "data/test").mkdir()
        (tmp_path / "data/test/0.png").write_bytes(images.encoded(images.some_pixels(1)[0]))
    with caplog.at_level(logging.WARNING, "anytime"):
        data = anytime.load_data(tmp_path / "data", show=False)
    assert len(data.test) == (4 if form == "parquet" else 6)
    assert len(data.train) + len(data.validation) == 30
    assert "'test' has no labels; 'validation' is used for test" in caplog.text


def test_training_images_must_have_labels(tmp_path):
    images.write_hub_folder(tmp_path / "data")
    images.write_parquet(tmp_path / "data/train.parquet", images.some_pixels(9), [-1] * 9)
    with pytest.raises(anytime.AnytimeError, match="the split 'train' has no labels"):
        anytime.load_data(tmp_path / "data", show=False)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_one_of_validation_and_test_is_for_test(tmp_path, split):
    write_three_splits(tmp_path / "data")
    (tmp_path / f"data/{split}.parquet").unlink()
    data = anytime.load_data(tmp_path / "data", show=False)
    assert (len(data.train), len(data.validation)) == (27, 3)
    assert len(data.test) == (4 if split == "test" else 9)


def test_the_hubs_splits_follow_the_same_rule(tmp_path, caplog):
    datasets = pytest.importorskip("datasets")
    write_three_splits(tmp_path / "data")
    whole = datasets.Dataset.from_parquet(
        [str(tmp_path / "data/train.parquet")], cache_dir=str(tmp_path / "hub"), keep_in_memory=True
    )
    names = ["train_1", "train_2", "validation", "test", "unsupervised"]
    found = datasets.DatasetDict(dict.fromkeys(names, whole))
    splits = from_datasets(found, "owner/name", [tmp_path])
    assert {split: len(part) for split, part in splits.items()} == {"train": 60, "validation": 30, "test": 30}
    assert "unsupervised" in caplog.text
    assert splits["train"].read(40) == read_folder(tmp_path / "data")["train"].read(10)
    with pytest.raises(anytime.AnytimeError, match="name the split"):
        from_datasets(datasets.DatasetDict({"train": whole, "train_noisy": whole}), "owner/name", [tmp_path])
