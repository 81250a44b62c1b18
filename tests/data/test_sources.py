"""Data as it lies on disk: found, read, decoded once, streamed, and refused with the place that is wrong."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import shared_data as images
import torch

import anytime
from anytime.data import cache
from anytime.data.images import Take
from anytime.data.sources import read_folder, read_hub
from anytime.data.stream import Stream
from anytime.training.recipe import recipe_for


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYTIME_CACHE", str(tmp_path / "cache"))


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
    assert len(splits["test"]) == 4


def test_extra_images_join_the_training_ones(tmp_path):
    images.write_hub_folder(tmp_path / "svhn")
    images.write_parquet(tmp_path / "svhn/extra.parquet", images.some_pixels(7, seed=9), [0] * 7)
    assert len(anytime.load_data(str(tmp_path / "svhn"), show=False).train) == 36
    data = anytime.load_data(str(tmp_path / "svhn"), extra=True, show=False)
    assert len(data.train) == 43
    assert len(data.validation) == 4


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


@pytest.mark.slow
def test_five_thousand_are_held_out_of_many():
    data = anytime.load_data(str(images.real("cifar10-30k")), show=False)
    assert (len(data.train), len(data.validation), len(data.test)) == (25_000, 5_000, 10_000)
    assert len(data.classes) == 10
    assert data.test.labels.bincount().tolist() == [1000] * 10


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
    "label out of range": ("label", "train.parquet, row 7: label 9, but the classes are 0 to 2"),
    "no columns": ("columns", "none is known to hold images"),
    "two sizes": ("sizes", "row 3 has 9×9 pixels, the first one 8×8"),
    "broken file": ("photo", "val/b/.*jpeg"),
    "folder without images": ("nothing", "has no images"),
    "no rows": ("rows", "has no rows"),
    "labels are words": ("words", "labels are whole numbers"),
    "shards do not fit": ("shards", "do not fit together"),
    "a class that was never trained": ("untrained", "class 'd' is not among the training images' classes"),
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
        import pyarrow.parquet as pq

        table = pq.read_table(folder / "train.parquet").rename_columns(["a", "b"]).replace_schema_metadata({})
        pq.write_table(table, folder / "train.parquet")
    elif name == "rows":
        images.write_parquet(folder / "train.parquet", pixels, labels)
        images.write_parquet(folder / "test.parquet", [], [])
    elif name in ("words", "shards"):
        import pyarrow as pa
        import pyarrow.parquet as pq

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


BUILD = """
import sys, anytime
data = anytime.load_data(sys.argv[1], show=False)
print(int(data.train.pixels.long().sum()))
"""


def test_two_processes_build_one_cache(tmp_path):
    images.write_hub_folder(tmp_path / "data", n=3000)
    command = [sys.executable, "-c", BUILD, str(tmp_path / "data")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate() for process in both]
    assert all(process.returncode == 0 for process in both), outputs
    assert outputs[0][0] == outputs[1][0]
    assert len(caches(tmp_path)) == 2, "one file a split, no temporary ones"


def test_a_full_disk_while_caching(tmp_path):
    images.write_hub_folder(tmp_path / "data", n=3000)
    program = textwrap.dedent("""
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    """)
    command = [sys.executable, "-c", program + BUILD, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode != 0
    assert "could not write" in done.stderr
    assert not caches(tmp_path)
    assert len(anytime.load_data(str(tmp_path / "data"), show=False).train) == 2700


def test_a_damaged_cache_is_built_anew(tmp_path, capsys):
    images.write_hub_folder(tmp_path / "data")
    before = anytime.load_data(str(tmp_path / "data"), show=False)
    for path in caches(tmp_path):
        path.write_bytes(path.read_bytes()[:100])
    after = anytime.load_data(str(tmp_path / "data"), show=False)
    assert torch.equal(before.train.pixels, after.train.pixels)
    assert "is damaged and is built anew" in capsys.readouterr().err


def test_the_cache_follows_the_contents(tmp_path):
    images.write_hub_folder(tmp_path / "data")
    anytime.load_data(str(tmp_path / "data"), show=False)
    images.write_parquet(tmp_path / "data/train.parquet", images.some_pixels(40, seed=5), [0, 1] * 20)
    data = anytime.load_data(str(tmp_path / "data"), show=False)
    assert np.array_equal(data.train.pixels.movedim(1, -1).numpy(), images.some_pixels(40, seed=5)[:36])
    assert len(caches(tmp_path)) == 3
    assert cache.folder() == tmp_path / "cache"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_the_same_again_and_in_parts(tmp_path, workers):
    images.write_class_folders(tmp_path)
    encoded = read_folder(tmp_path)["train"]
    stream = Stream(encoded, torch.arange(30), size=32, workers=workers)
    augmentation = anytime.Recipe().augmentation
    indices = torch.tensor([3, 7, 7, 29, 0, 11])
    (whole,) = stream.batches([Take(indices, seed=4, first=0, total=6)], augmentation)
    assert whole.pixels.shape == (6, 3, 32, 32)
    assert whole.labels.tolist() == encoded.labels[indices].tolist()
    assert not torch.equal(whole.pixels[1], whole.pixels[2]), "each place is cut out in its own way"
    (part,) = stream.batches([Take(indices[2:5], seed=4, first=2, total=6)], augmentation)
    assert torch.equal(part.pixels, whole.pixels[2:5])
    (plain,) = stream.batches([Take(indices)])
    assert torch.equal(plain.pixels[1], plain.pixels[2]), "evaluation takes the middle"


def test_the_middle_is_seven_eighths_of_the_shorter_side(tmp_path):
    ramp = np.tile(np.arange(0, 240, 2, dtype=np.uint8)[None, :, None], (80, 1, 3))  # 120 wide, 80 high
    (tmp_path / "train/a").mkdir(parents=True)
    (tmp_path / "train/a/0.png").write_bytes(images.encoded(ramp))
    stream = Stream(read_folder(tmp_path)["train"], torch.arange(1), size=70, workers=0)
    (batch,) = stream.batches([Take(torch.tensor([0]))])
    assert np.array_equal(batch.pixels[0, 0].numpy(), ramp[5:75, 25:95, 0])


def test_photos_train(tmp_path):
    images.write_class_folders(tmp_path / "photos")
    data = anytime.load_data(str(tmp_path / "photos"), size=32)
    net = anytime.create_model("resann26", num_classes=3)
    result = anytime.fit(net, data, recipe=anytime.Recipe(epochs=1, batch_size=9, pad=0), show=False)
    assert len(result.curve.errors) == 4


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
