"""Messages and inputs on their way to another process."""

import pickle
import socket
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


def test_an_input_that_does_not_fit_is_not_put():
    arena = Arena(slots=1, slot_bytes=64)
    assert arena.put(torch.zeros(17)) is None
    assert arena.put(torch.zeros(16)) is not None
    assert arena.put(torch.zeros(16)) is None  # no slot is free
