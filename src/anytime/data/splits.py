"""Splits of a data set: which of its files, folders or Hub splits are for training, validation and test."""

import logging
import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from anytime.errors import AnytimeError

_WORDS = {
    "train": "train", "training": "train",
    "val": "validation", "valid": "validation", "validation": "validation",
    "test": "test", "testing": "test",
    "extra": "extra",
}  # fmt: skip

logger = logging.getLogger(__name__)


def group_by_split(paths: Iterable[str], where: str) -> dict[str, list[str]]:
    """Group paths (or the names of a Hub data set's splits) by the split that they name.

    A split is named by the word train, validation (val, valid), test or extra in the last part of a path, or in the
    nearest folder above. Several paths make up one split if they are in one folder of that name, or if their names
    differ in numbers only, as shards do; otherwise they are refused. Paths that name no split are reported.

    Args:
        paths: relative to the data set, with forward slashes.
        where: the data set, for messages.

    Examples:
        >>> group_by_split(["data/train-0-of-2.parquet", "data/train-1-of-2.parquet", "val/0.parquet"], "photos")
        {'train': ['data/train-0-of-2.parquet', 'data/train-1-of-2.parquet'], 'validation': ['val/0.parquet']}
    """
    groups: dict[str, list[str]] = {}
    first: dict[str, tuple[str, str]] = {}
    unused = []
    for path in paths:
        named = _named(path, where)
        if named is None:
            unused.append(path)
            continue
        split, shards = named
        before, other = first.setdefault(split, (shards, path))
        if shards != before:
            raise AnytimeError(
                f"{where}: both {other} and {path} name the split {split!r}. Parts of one split are in one folder or "
                "differ in numbers only (train_1, train_2): rename them so, or keep one of them"
            )
        groups.setdefault(split, []).append(path)
    if unused:
        some = ", ".join(unused[:3]) + (f" and {len(unused) - 3} more" if len(unused) > 3 else "")
        logger.warning(
            "%s: not used, since the name is not that of a split (train, validation, test, extra): %s", where, some
        )
    return groups


def _named(path: str, where: str) -> tuple[str, str] | None:
    """The split that a path names, and the name without what may differ among the parts of one split."""
    parts = PurePosixPath(path).parts
    for i in reversed(range(len(parts))):
        found = {_WORDS[word] for word in re.split(r"[^a-z]+", parts[i].lower()) if word in _WORDS}
        if len(found) > 1:
            raise AnytimeError(f"{where}: {path} names two splits, {' and '.join(sorted(found))}; rename it")
        if found:
            # The Hub's client adds a digest of 16 digits to the names of shards.
            name = re.sub(r"\d+", "0", re.sub(r"-[0-9a-f]{16}\b", "", parts[i]))
            return found.pop(), "/".join((*parts[:i], name))
    return None
