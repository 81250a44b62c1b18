"""Files are complete or absent, whoever writes, reads or is killed meanwhile; altered ones are refused."""

import json
import multiprocessing
import os
import resource
import stat
import textwrap
import threading
import time
from pathlib import Path

import processes
import pytest
import torch
from safetensors.torch import save_file

import anytime
from anytime.files import (
    pack,
    read_json,
    read_tensors,
    scratch,
    write_json,
    write_tensors,
    write_together,
    write_whole,
)


def together(*tasks):
    """Run tasks in threads; raise what one of them raised."""
    errors = []

    def guarded(task):
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_four_writers_and_two_readers_of_one_file(tmp_path):
    path = tmp_path / "file.json"
    write_json(path, {"writer": "", "text": ""})

    def write(writer):
        for i in range(25):
            write_json(path, {"writer": writer, "text": writer * (1000 * (i % 7))})

    def read():
        for _ in range(300):
            content = read_json(path)
            assert set(content["text"]) <= {content["writer"]}

    together(*(lambda w=w: write(w) for w in "abcd"), read, read)
    assert list(tmp_path.iterdir()) == [path]


def test_killed_writers_leave_nothing_for_long(tmp_path):
    """Two processes write the same file all the time and are killed; the next writer removes what they left."""
    path, tensors = tmp_path / "checkpoint.safetensors", {"a": torch.ones(500_000)}

    def write():
        while True:
            write_tensors(path, tensors, {})

    left = 0
    for _ in range(10):
        writers = [multiprocessing.get_context("fork").Process(target=write) for _ in range(2)]
        for writer in writers:
            writer.start()
        while not path.exists() or not any(p.name.startswith(".") for p in tmp_path.iterdir()):
            time.sleep(0)
        for writer in writers:
            writer.kill()
            writer.join()
        assert read_tensors(path)[0]["a"].eq(1).all()
        left += len(list(tmp_path.iterdir())) - 1
    assert left > 0
    write_tensors(path, {"a": torch.zeros(1)}, {})
    assert list(tmp_path.iterdir()) == [path]


def test_temporary_files_in_use_are_not_swept(tmp_path):
    with scratch(tmp_path) as (temporary, _):
        (temporary / "half").write_text("half")
        write_json(tmp_path / "other.json", {})
        assert (temporary / "half").read_text() == "half"
    assert [path.name for path in tmp_path.iterdir()] == ["other.json"]


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o002])
def test_permissions_follow_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_json(tmp_path / "a.json", {})
        write_tensors(tmp_path / "b.safetensors", {"a": torch.zeros(1)}, {})
        anytime.save(anytime.create_model("resann-1-4"), tmp_path / "model")
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o666 & ~mask}


def test_links_are_replaced_not_followed(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "file.json").symlink_to(tmp_path / "precious")
    write_json(tmp_path / "file.json", {"a": 1})
    assert (tmp_path / "precious").read_text() == "precious"
    assert read_json(tmp_path / "file.json") == {"a": 1}


def test_a_folder_that_is_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write_together(tmp_path / "link", {name: lambda path: path.write_text("x") for name in ("a", "b")})
    assert sorted(path.name for path in (tmp_path / "real").iterdir()) == ["a", "b"]


def test_files_are_on_disk_before_the_first_one_is_renamed(tmp_path, monkeypatch):
    """And the folder after the last one: a power failure leaves the old files or the new ones, never empty ones."""
    happened = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        happened.append(("flush", path.name, path.is_file() and path.read_text()))
        fsync(descriptor)

    def note_replace(source, target):
        happened.append(("rename", Path(target).name, Path(source).read_text()))
        replace(source, target)

    monkeypatch.setattr("os.fsync", note_fsync)
    monkeypatch.setattr("os.replace", note_replace)
    write_together(tmp_path, {name: lambda path, name=name: path.write_text(f"all of {name}") for name in "ab"})
    assert happened == [
        ("flush", "a", "all of a"),
        ("flush", "b", "all of b"),
        ("rename", "a", "all of a"),
        ("rename", "b", "all of b"),
        ("flush", tmp_path.name, False),
    ]


def test_a_failed_write_leaves_the_previous_file(tmp_path):
    path = tmp_path / "file"
    write_whole(path, lambda temporary: temporary.write_text("old"))

    def fail(temporary):
        temporary.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(anytime.AnytimeError, match="No space left on device; the previous file is untouched"):
        write_whole(path, fail)

    def interrupt(temporary):
        temporary.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(path, interrupt)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk(tmp_path):
    """A real one is not ours to fill: the system refuses to let this process write more than 100 kB to a file."""
    program = textwrap.dedent("""
        import resource, signal, sys, torch
        from pathlib import Path
        from anytime.files import write_tensors
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            write_tensors(Path(sys.argv[1]), {"a": torch.zeros(1_000_000)}, {"epoch": 2})
        except ValueError as error:
            print(error)
    """)
    path = tmp_path / "checkpoint.safetensors"
    write_tensors(path, {"a": torch.ones(1000)}, {"epoch": 1})
    done = processes.run(["-c", program, path], check=True)
    assert "could not write" in done.stdout
    assert "the previous file is untouched" in done.stdout
    tensors, about = read_tensors(path)
    assert about == {"epoch": 1}
    assert torch.equal(tensors["a"], torch.ones(1000))
    assert list(tmp_path.iterdir()) == [path]


def test_shared_and_overlapping_tensors_come_back(tmp_path):
    """Parameters that exits share, and views into one tensor, as state dicts hold them."""
    whole = torch.randn(6, 4)
    tensors = {"a": whole, "b": whole, "rows": whole[2:4], "turned": whole.t(), "none": torch.empty(0, 3)}
    tensors |= {"number": torch.tensor(3), "half": torch.randn(5).bfloat16(), "yes": torch.tensor([True])}
    write_tensors(tmp_path / "file", tensors, {"x": [1, None]})
    again, about = read_tensors(tmp_path / "file")
    assert about == {"x": [1, None]}
    assert again.keys() == tensors.keys()
    assert all(
        torch.equal(again[name], tensor) and again[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )
    assert again["a"].data_ptr() == again["b"].data_ptr()


def test_every_flipped_byte_of_tensors_is_noticed(tmp_path):
    path = tmp_path / "file"
    tensors = {"a": torch.arange(4.0), "b": torch.arange(3)}
    write_tensors(path, tensors, {"epoch": 3})
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            found, about = read_tensors(path)
        except anytime.AnytimeError:
            continue
        assert about == {"epoch": 3}, place  # a space that became something else without a meaning
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_what_has_no_checksum_is_refused(tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "other", {"anytime": "{}"})
    with pytest.raises(anytime.AnytimeError, match="has no checksum"):
        read_tensors(tmp_path / "other")
    write_json(tmp_path / "other.json", {"a": 1})
    with pytest.raises(anytime.AnytimeError, match="has no checksum"):
        read_json(tmp_path / "other.json", sealed=True)


def test_equal_contents_make_equal_files(tmp_path):
    for name in ("a", "b"):
        write_tensors(tmp_path / name, {"x": torch.zeros(3), "y": torch.ones(2)}, {"epoch": 1, 10: 1, 9: 2})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_tensors(tmp_path / "a")[1] == {"epoch": 1, "10": 1, "9": 2}


def test_checksums_are_of_the_content_not_of_its_spelling(tmp_path):
    path = tmp_path / "file.json"
    write_json(path, {"a": [1, 0.1, "ü", None], "b": {}}, sealed=True)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(content.items()))))
    assert read_json(path, sealed=True) == {"a": [1, 0.1, "ü", None], "b": {}}
    path.write_text(json.dumps(content | {"b": {"c": 1}}))
    with pytest.raises(anytime.AnytimeError, match="was altered"):
        read_json(path, sealed=True)


def hostile(path, kind):
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "a folder":
        path.mkdir()
    elif kind == "huge":
        with open(path, "wb") as file:
            file.truncate(2**40)
    else:
        path.write_bytes({"not UTF-8": b'{"\xff": 1}', "nested": b'{"a":' + b"[" * 10**6, "digits": b"9" * 10**6}[kind])


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder", "huge", "not UTF-8", "nested", "digits"])
@pytest.mark.parametrize("read", [read_json, read_tensors])
def test_what_never_ends_or_fills_the_memory_is_refused(tmp_path, read, kind):
    hostile(tmp_path / "file", kind)
    with pytest.raises(anytime.AnytimeError, match="cannot read") as error:
        read(tmp_path / "file")
    assert len(str(error.value)) < 1000


def test_more_tensors_than_memory_are_refused(tmp_path):
    size = 2**40  # of a file that takes no room on disk
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with open(tmp_path / "file", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**39, before[1]))
    try:
        with pytest.raises(anytime.AnytimeError, match="cannot read"):
            read_tensors(tmp_path / "file")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_the_checksum_covers_names_types_and_shapes():
    bits = torch.arange(4, dtype=torch.int32)
    some = [{"a": bits}, {"b": bits}, {"a": bits.view(2, 2)}, {"a": bits.view(torch.float32)}, {"a": bits + 1}]
    assert len({pack(tensors, {})[2] for tensors in some}) == len(some)
