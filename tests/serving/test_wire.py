"""Messages and inputs on their way to another process."""

import pickle
import shutil
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from struct import Struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anytime.serving.arena import Arena
from anytime.serving.wire import Wire


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=8), st.lists(st.integers(1, 200), min_size=1))
def test_messages_arrive_whole_and_in_order_however_they_are_cut(messages, cuts):
    ours, theirs = socket.socketpair()
    packed = [pickle.dumps(message) for message in messages]
    data = b"".join(Struct("<Q").pack(len(part)) + part for part in packed)
    wire, received = Wire(theirs), []
    while data:
        for cut in cuts:
            ours.sendall(data[:cut])
            data = data[cut:]
            received += wire.receive(wait=False)
    assert received == messages
    ours.close()
    with pytest.raises(EOFError):
        wire.receive()
    wire.close()


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(2, 3),
        torch.arange(5)[None],
        {"pixels": torch.randn(1, 2, 2), "scale": 3, "mask": torch.tensor([[True, False]])},
        (torch.randn(1, 3).to(torch.float16), [torch.randn(1, 1)]),
    ],
)
def test_what_is_put_into_shared_memory_is_read_by_another(x):
    arena = Arena(slots=2, slot_bytes=512)
    other = Arena(2, 512, file=arena.file)
    for value in (x, torch.ones(1, 4), x):  # slots are used again, for inputs of another kind too
        slot, described = arena.put(value)
        torch.testing.assert_close(other.get(slot, described), value, rtol=0, atol=0)
        arena.free(slot)


def test_any_thread_may_ask_whether_something_has_come():
    ours, theirs = (Wire(end) for end in socket.socketpair())
    ended = threading.Event()

    def ask():
        while not ended.is_set():
            assert not ours.unread

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        for _ in range(5000):
            assert ours.receive(wait=False) == []
        ended.set()
        asking.result()
    theirs.send("a")
    assert ours.unread
    ours.close()
    assert not ours.unread, "it is asked about workers that have just ended"
    assert theirs.unread, "the end"
    theirs.close()


def test_an_input_that_does_not_fit_is_not_put():
    arena = Arena(slots=1, slot_bytes=64)
    assert arena.put(torch.zeros(17)) is None
    assert arena.put(torch.zeros(16)) is not None
    assert arena.put(torch.zeros(16)) is None  # no slot is free


def small_memory(kilobytes):
    """A command that runs another with a /dev/shm of its own of this size."""
    mount = f"mount -t tmpfs -o size={kilobytes}k none /dev/shm"
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*command, mount], capture_output=True).returncode:
        pytest.skip("may not mount a file system")
    return [*command, f'{mount} && exec "$@"', "sh"]


def test_memory_without_room_is_not_touched():
    """What is written there would end the process with SIGBUS."""
    code = (
        "import torch; from anytime.serving.arena import Arena\n"
        "arena = Arena(slots=16, slot_bytes=2**16)\n"
        "stored = [arena.put(torch.full((2**16,), i, dtype=torch.uint8)) for i in range(16)]\n"
        "kept = [each and int(arena.get(*each).max()) for each in stored]\n"
        "room = sum(each is not None for each in kept)\n"
        "assert 4 < room <= 8, room\n"
        "assert kept == [*range(room)] + [None] * (16 - room), kept\n"
        "arena.free(stored[3][0])\n"
        "assert arena.put(torch.zeros(8)) is not None and arena.put(torch.zeros(8)) is None\n"
    )
    done = subprocess.run([*small_memory(512), sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done
    assert "docker run --shm-size=65m" in done.stderr
