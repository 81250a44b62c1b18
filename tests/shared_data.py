"""Images to test with: small ones made here, and the real ones where they are."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

REAL = Path(__file__).parents[2] / "shared" / "data"


def real(name):
    """A folder of real images, or a skip."""
    if not (REAL / name).is_dir():
        pytest.skip(f"{REAL / name} is not here")
    return REAL / name


def encoded(pixels, form="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


def some_pixels(n, seed=0, size=8):
    return np.random.default_rng(seed).integers(256, size=(n, size, size, 3), dtype=np.uint8)


def write_parquet(path, pixels, labels, names=("a", "b", "c"), column="img", label="label", broken=()):
    """A parquet file as the Hub has them."""
    rows = [{"bytes": b"no image" if i in broken else encoded(p), "path": None} for i, p in enumerate(pixels)]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    features = {column: {"_type": "Image"}, label: {"_type": "ClassLabel", "names": list(names)}}
    table = pa.table({column: pa.array(rows, kind), label: pa.array(labels, pa.int64())})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def write_hub_folder(folder, n=40, **options):
    labels = [i % 3 for i in range(n)]
    pixels = some_pixels(n)
    write_parquet(folder / "train.parquet", pixels, labels, **options)
    write_parquet(folder / "test.parquet", some_pixels(9, seed=1), labels[:9], **options)
    return pixels, labels


def write_class_folders(folder, n=30, size=80):
    for split, count in {"train": n, "val": 6}.items():
        for i, pixels in enumerate(some_pixels(count, size=size)):
            path = folder / split / "abc"[i % 3] / f"{i:03}.jpeg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(pixels, "JPEG"))
