"""The cache gives exactly what the stored images decode to, whatever happens to it."""

import os
import stat
import textwrap

import numpy as np
import processes
import pyarrow as pa
import pytest
import shared_data as images
import torch

import anytime
from anytime.data import cache
from anytime.data.sources import from_datasets
from anytime.data.table import ImageTable
from anytime.files import write_tensors

STRUCT = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def caches(tmp_path):
    return sorted((tmp_path / "cache").glob("*"))


def table_of(column, n, folder):
    return ImageTable(pa.table({"image": column, "label": pa.array([0] * n)}), {}, "rows", [folder])


def write_files(folder, pixels):
    folder.mkdir()
    for i, image in enumerate(pixels):
        (folder / f"{i}.png").write_bytes(images.encoded(image))
    return [f"{folder.name}/{i}.png" for i in range(len(pixels))]


def by_path(pixels, folder, seed):
    paths = write_files(folder / f"files{seed}", pixels)
    return pa.array([{"bytes": None, "path": path} for path in paths], STRUCT)


def by_bytes(pixels, _folder, _seed):
    return pa.array([{"bytes": images.encoded(image), "path": None} for image in pixels], STRUCT)


def dictionary(pixels, _folder, _seed):
    return pa.array([images.encoded(image) for image in pixels], pa.binary()).dictionary_encode()


def structs_of_dictionaries(pixels, folder, seed):
    return pa.StructArray.from_arrays([dictionary(pixels, folder, seed)], ["bytes"])


@pytest.mark.parametrize("form", [by_path, by_bytes, dictionary, structs_of_dictionaries])
def test_other_images_with_the_same_labels_have_another_key(tmp_path, form):
    for seed in (0, 1):
        pixels = images.some_pixels(20, seed)
        rows = table_of(form(pixels, tmp_path, seed), 20, tmp_path)
        for _ in range(2):  # decoded, then from the cache
            assert np.array_equal(cache.decoded(rows, "rows", show=False).movedim(1, -1).numpy(), pixels)
    assert len(caches(tmp_path)) == 2


def test_parts_of_one_array_have_different_keys(tmp_path):
    pixels = images.some_pixels(20)
    whole = by_bytes(pixels, tmp_path, 0)
    for part in (slice(0, 10), slice(10, 20)):
        rows = table_of(whole[part.start : part.stop], 10, tmp_path)
        assert np.array_equal(cache.decoded(rows, "rows", show=False).movedim(1, -1).numpy(), pixels[part])


def test_image_folders_through_the_hubs_client(tmp_path):
    datasets = pytest.importorskip("datasets")
    pixels = {split: images.some_pixels(20, seed) for seed, split in enumerate(("train", "test"))}
    found = {}
    for split in pixels:
        files = [str(tmp_path / path) for path in write_files(tmp_path / split, pixels[split])]
        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a"])})
        found[split] = datasets.Dataset.from_dict({"image": files, "label": [0] * 20}, features=features)
    splits = from_datasets(datasets.DatasetDict(found), "folders", [tmp_path])
    for split, part in splits.items():
        assert part.column[0].as_py()["bytes"] is None
        ours = cache.decoded(part, split, show=False)
        assert np.array_equal(ours.movedim(1, -1).numpy(), pixels[split])


def test_a_cache_that_cannot_be_written_is_a_notice(tmp_path, monkeypatch, caplog):
    pixels, _ = images.write_hub_folder(tmp_path / "data")
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("ANYTIME_CACHE", str(tmp_path / "file" / "cache"))
    data = anytime.load_data(tmp_path / "data", show=False)
    assert np.array_equal(data.train.pixels.movedim(1, -1).numpy(), pixels[:36])
    assert "the decoded images of data, train are not cached: could not write" in caplog.text


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_permissions_follow_the_umask(tmp_path, umask):
    images.write_hub_folder(tmp_path / "data")
    before = os.umask(umask)
    try:
        anytime.load_data(tmp_path / "data", show=False)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in caches(tmp_path)] == [0o666 & ~umask] * 2
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o777 & ~umask


BUILD = """
import sys, anytime
data = anytime.load_data(sys.argv[1], show=False)
print(int(data.train.pixels.long().sum()))
"""


def test_two_processes_build_one_cache(tmp_path):
    images.write_hub_folder(tmp_path / "data", n=3000)
    both = [processes.Child(["-c", BUILD, tmp_path / "data"]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0], [process.stderr for process in both]
    assert both[0].stdout == both[1].stdout
    assert len(caches(tmp_path)) == 2, "one file per split, no temporary ones"


def test_a_full_disk_while_caching(tmp_path):
    images.write_hub_folder(tmp_path / "data", n=3000)
    program = textwrap.dedent("""
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    """)
    done = processes.run(["-c", program + BUILD, tmp_path / "data"])
    assert done.returncode == 0, done.stderr
    assert "are not cached: could not write" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(caches(tmp_path)) == 1, "the few test images, but no part of the others"
    pixels = anytime.load_data(str(tmp_path / "data"), show=False).train.pixels
    assert int(done.stdout) == int(pixels.long().sum())


@pytest.mark.parametrize("damage", ["truncated", "pixels", "other", "pipe", "folder"])
def test_a_damaged_cache_is_not_used(tmp_path, caplog, damage):
    images.write_hub_folder(tmp_path / "data")
    before = anytime.load_data(tmp_path / "data", show=False)
    for path in caches(tmp_path):
        content = bytearray(path.read_bytes())
        path.unlink()
        if damage == "pipe":
            os.mkfifo(path)
        elif damage == "folder":
            path.mkdir()
        elif damage == "other":
            write_tensors(path, {"something": torch.ones(3)}, {})
        else:
            content[-1] ^= 1
            path.write_bytes(content if damage == "pixels" else content[:100])
    after = anytime.load_data(tmp_path / "data", show=False)
    assert torch.equal(before.train.pixels, after.train.pixels)
    assert caplog.text.count("cached images cannot be used") == 2


def test_the_cache_follows_the_contents(tmp_path):
    images.write_hub_folder(tmp_path / "data")
    anytime.load_data(str(tmp_path / "data"), show=False)
    images.write_parquet(tmp_path / "data/train.parquet", images.some_pixels(40, seed=5), [0, 1] * 20)
    data = anytime.load_data(str(tmp_path / "data"), show=False)
    assert np.array_equal(data.train.pixels.movedim(1, -1).numpy(), images.some_pixels(40, seed=5)[:36])
    assert len(caches(tmp_path)) == 3
    assert cache.folder() == tmp_path / "cache"
