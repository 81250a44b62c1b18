"""Records of measurements in ``docs/records``: reading them, making them, and which are older than their code."""

import hashlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from measurements import MEASUREMENTS, RUNS

DOCS = Path(__file__).parent
ROOT = DOCS.parent
RECORDS = DOCS / "records"
_read: dict[str, None] = {}
"""The names of the records that were read, in order, for ``read_by``."""


def results(record: str) -> dict[str, Any]:
    """What a command printed."""
    return read(record)["results"]


def read(record: str) -> dict[str, Any]:
    """A record, or an end with the command that makes it."""
    path = RECORDS / f"{record}.json"
    if not path.is_file():
        raise SystemExit(f"{path.name} is missing: python docs/figures.py measure {record}")
    _read[record] = None
    return json.loads(path.read_text(encoding="utf-8"))


def read_by(figures: Iterable[Callable[[], object]]) -> list[str]:
    """The names of the records that these figures are made from."""
    _read.clear()
    for figure in figures:
        figure()
    return list(_read)


def measured_at(records: Sequence[str]) -> str:
    """A sentence with the commit and the day of each of these records."""
    days: dict[str, dict[str, list[str]]] = {}
    for name in sorted(records):
        record = read(name)
        days.setdefault(record["date"], {}).setdefault(record["commit"], []).append(f"`{name}`")
    said = [
        f"at {commit} ({day}) {', '.join(names)}"
        for day, commits in sorted(days.items())
        for commit, names in sorted(commits.items())
    ]
    return f"Where this page's measurements come from (`docs/records`), with the commit of the code: {'; '.join(said)}."


def digest(code: Sequence[str]) -> str:
    """Of all Python files below these paths."""
    files = sorted(
        file for path in code for file in ([ROOT / path] if path.endswith(".py") else (ROOT / path).rglob("*.py"))
    )
    contents = hashlib.sha256()
    for file in files:
        contents.update(file.relative_to(ROOT).as_posix().encode() + file.read_bytes())
    return contents.hexdigest()[:16]


def stale(names: Iterable[str]) -> list[str]:
    """Those of these records whose code or command has changed since, or that are missing; the quickest first.

    How long a command took is in records since they have ``seconds``; the others come after, in the order given.
    """
    found = {}
    for name in names:
        command, code = MEASUREMENTS[name]
        record = read(name) if (RECORDS / f"{name}.json").is_file() else {}
        if record.get("code") != digest(code) or record["command"] != command.format(data="cifar10"):
            found[name] = record.get("seconds", float("inf"))
    return sorted(found, key=found.__getitem__)


def machine() -> str:
    """What it was measured on."""
    import torch

    from anytime.distributed import cores
    from anytime.measuring import kind_of

    return f"torch {torch.__version__}, {cores()} cores, {kind_of(torch.zeros(1)).device}"


def commit(code: Sequence[str]) -> str:
    """The commit that is checked out, with a plus if this code was changed since."""
    command = ["git", "rev-parse", "--short=9", "HEAD"]
    head = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    command = ["git", "status", "--porcelain", "--", *code]
    return head + "+" * bool(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


class UnmeasuredError(Exception):
    """A command that could not be run or that failed; its record stays as it was."""


def measure(name: str, data: str) -> None:
    """Run a command and keep what it prints."""
    command, code = MEASUREMENTS[name]
    words = shlex.split(command.format(data=data))
    for word in words:
        if word in RUNS and not (ROOT / word).exists():
            raise UnmeasuredError(f"{name} needs the trained network {word}: {RUNS[word]}")
    words[0] = {"python": sys.executable, "anytime": str(Path(sys.executable).with_name("anytime"))}[words[0]]
    print(f"$ {command.format(data=data)}", flush=True)
    measured, begun = {"commit": commit(code), "code": digest(code)}, time.monotonic()
    done = subprocess.run([*words, "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise UnmeasuredError(f"{name} failed with exit code {done.returncode}: its record stays as it was")
    record = {
        "command": command.format(data="cifar10"),
        "date": time.strftime("%Y-%m-%d"),
        "seconds": round(time.monotonic() - begun),
        "machine": machine(),
        **measured,
        "results": json.loads(done.stdout),
    }
    RECORDS.mkdir(exist_ok=True)
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    (RECORDS / f"{name}.json").write_text(text, encoding="utf-8")


def measure_all(names: Sequence[str], data: str) -> list[str]:
    """Run these commands one after the other; gives what is wrong with those that failed.

    Each record is written as soon as its command has ended, so what is stopped here is not lost.
    """
    failed = []
    for number, name in enumerate(names, start=1):
        print(f"[{number}/{len(names)}] {name}", flush=True)
        try:
            measure(name, data)
        except UnmeasuredError as error:
            print(error, flush=True)
            failed.append(str(error))
    return failed
