"""Where data sets come from: local folders of parquet files or images, and the Hugging Face Hub."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anytime.data.encoded import Encoded, one_line
from anytime.data.folder import Folder, entries, files
from anytime.data.splits import group_by_split
from anytime.data.table import ImageTable
from anytime.errors import AnytimeError, require
from anytime.files import open_regular


def read_folder(path: Path) -> dict[str, Encoded]:
    """The splits in a local folder: parquet files as the Hub has them, or else folders of classes in one per split.

    If there are parquet files, images elsewhere in the folder are used only if a row refers to them.
    """
    # Not by `datasets`, the Hub's client: it needs a writable cache and copies every data set into it (69 MB for 40,000
    # images of CIFAR-10). Measured on two shared cores, it takes 4.3 s to open these the first time and 3.3 s later
    # (here 1.4 s), and 3.6 s for 1,500 photos in folders (here 0.1 s); decoding takes 14 s of CPU time (here 12 s). It
    # would save 96 MB of 450 MB of memory, since it maps its copy, while here the encoded images are held in memory.
    tables = sorted(file for file in files(path) if file.suffix == ".parquet")
    found = tables or sorted(Path(entry) for entry in entries(path) if entry.is_dir())
    splits = group_by_split([file.relative_to(path).as_posix() for file in found], str(path))
    if not splits:
        raise AnytimeError(
            f"{path} holds no data: expected parquet files (train.parquet, test.parquet) or folders train/CLASS/*.jpeg "
            "and val/CLASS/*.jpeg"
        )
    read = _read_parquet if tables else lambda files, _: Folder(files)
    return {split: read([path / name for name in names], path) for split, names in splits.items()}


def _read_parquet(files: Sequence[Path], folder: Path) -> ImageTable:
    """One table from the parquet files of a split, held in memory with its images encoded."""
    parquet = require("pyarrow.parquet", "data")
    arrow = require("pyarrow", "data")
    tables = []
    for file in files:
        try:
            open_regular(file).close()
            tables.append(parquet.read_table(file, memory_map=True, page_checksum_verification=True))
        except Exception as error:  # besides Arrow's own: OSError, MemoryError, UnicodeDecodeError, …
            raise AnytimeError(f"cannot read {file}: it is truncated or no parquet file ({one_line(error)})") from error
    name = str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    try:
        return ImageTable(arrow.concat_tables(tables), _features(tables[0].schema.metadata), name, [folder])
    except AnytimeError:
        raise
    except Exception as error:
        raise AnytimeError(
            f"{name}: the files do not fit together or their schema is damaged ({one_line(error)})"
        ) from error


def _features(metadata: Mapping[bytes, bytes] | None) -> dict[str, dict[str, Any]]:
    """What the Hub's client wrote about the columns into a parquet file."""
    written = (metadata or {}).get(b"huggingface")
    features = json.loads(written)["info"]["features"] if written else {}
    return {column: dict(feature) for column, feature in features.items() if isinstance(feature, dict)}


def read_hub(name: str, config: str | None = None) -> dict[str, Encoded]:
    """The splits of a data set on the Hugging Face Hub, downloaded once."""
    datasets = require("datasets", "data")
    try:
        with _without_retries():
            found = datasets.load_dataset(name, config)
    except Exception as error:  # the Hub's client raises many kinds
        raise AnytimeError(
            f"cannot load {name!r} from the Hugging Face Hub ({one_line(error).rstrip('.')}), and there is no such "
            "folder: check the name and the network, or give a local folder that holds it, e.g. --data DIR"
        ) from error
    hub = require("huggingface_hub.constants", "data")
    return from_datasets(found, name, [Path(datasets.config.HF_DATASETS_CACHE), Path(hub.HF_HUB_CACHE)])


@contextmanager
def _without_retries() -> Iterator[None]:
    """Without the Hub's warnings of each failed attempt; our error says it once. Asked for more, it says all."""
    log = require("huggingface_hub.utils.logging", "data")
    before = log.get_verbosity()
    if before == log.WARNING:
        log.set_verbosity_error()
    try:
        yield
    finally:
        log.set_verbosity(before)


def from_datasets(found: Mapping[str, Any], name: str, folders: Sequence[Path]) -> dict[str, Encoded]:
    """The splits of a ``DatasetDict`` of the Hub's client, whose image files are below ``folders``."""
    arrow = require("pyarrow", "data")
    datasets = require("datasets", "data")
    result: dict[str, Encoded] = {}
    for split, names in group_by_split(found, name).items():
        tables = []
        for part in (found[n] for n in names):
            for column, feature in part.features.items():
                if isinstance(feature, datasets.Image):
                    part = part.cast_column(column, datasets.Image(decode=False))
            tables.append(part.data.table)
        features = {
            column: {"_type": type(feature).__name__, "names": getattr(feature, "names", None)}
            for column, feature in found[names[0]].features.items()
        }
        result[split] = ImageTable(arrow.concat_tables(tables), features, f"{name}, split {split}", folders)
    return result
