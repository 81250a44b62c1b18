"""Messages between two processes over a socket; all that have come are read at once."""

import pickle
import select
import socket
import threading
from struct import Struct
from typing import Any

_LENGTH = Struct("<Q")


class Wire:
    """One end of a socket. Any thread may send; one receives.

    Args:
        end: a connected stream socket.

    Examples:
        >>> ours, theirs = (Wire(end) for end in socket.socketpair())
        >>> ours.send("a"), ours.send(("b", 2))
        (None, None)
        >>> theirs.receive(), theirs.receive(wait=False)
        (['a', ('b', 2)], [])
        >>> ours.close(), theirs.close()
        (None, None)
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._sending, self._read = threading.Lock(), bytearray()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def fileno(self) -> int:
        """The socket's number, for whoever waits for several."""
        return self.socket.fileno()

    def send(self, message: Any) -> None:
        """Send something that can be pickled; raises ``OSError`` if the other end is gone."""
        self.send_pickled(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send_pickled(self, data: bytes) -> None:
        """Send what is pickled already."""
        with self._sending:
            self.socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self, wait: bool = True) -> list[Any]:
        """What has come since the last time: at least one message, unless ``wait`` is False.

        Raises ``EOFError`` when the other end is closed, ``OSError`` when it broke off.
        """
        messages: list[Any] = []
        while not messages:
            if not wait and not self._poll.poll(0):
                return []
            part = self.socket.recv(2**16)
            if not part:
                raise EOFError("the other end is closed")
            self._read += part
            messages = self._whole()
        return messages

    def _whole(self) -> list[Any]:
        """Take the whole messages out of what was read."""
        messages, start, read = [], 0, self._read
        while len(read) - start >= _LENGTH.size:
            begin = start + _LENGTH.size
            end = begin + _LENGTH.unpack_from(read, start)[0]
            if end > len(read):
                break
            messages.append(pickle.loads(read[begin:end]))
            start = end
        del read[:start]
        return messages

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
