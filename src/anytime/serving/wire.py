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
        self._unsent, self._gone = bytearray(), False
        self._sender: threading.Thread | None = None

    def fileno(self) -> int:
        """The socket's number, for whoever waits for several."""
        return self.socket.fileno()

    def send(self, message: Any) -> None:
        """Send something that can be pickled, however long the other end takes; ``OSError`` if that is gone.

        A wire is either sent or posted to.
        """
        self.send_pickled(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send_pickled(self, data: bytes) -> None:
        """Send what is pickled already."""
        with self._sending:
            self.socket.sendall(_LENGTH.pack(len(data)) + data)

    def post(self, message: Any) -> None:
        """The same without waiting: what the socket does not take at once, a thread sends in the same order.

        When the other end is gone, messages have no effect: whoever receives learns of the end.
        """
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._sending:
            if self._gone:
                return
            self._unsent += _LENGTH.pack(len(data)) + data
            if self._sender is None and not self._push():
                poll = select.poll()
                poll.register(self.socket, select.POLLOUT)
                self._sender = threading.Thread(target=self._send_rest, args=(poll,), name="anytime wire", daemon=True)
                self._sender.start()

    def _push(self) -> bool:
        """Give the socket what it takes now; whether nothing is left to send."""
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            return False
        except OSError:  # the other end is gone, or this one was closed
            self._gone = True
            self._unsent.clear()
        return True

    def _send_rest(self, poll: select.poll) -> None:
        sent = False
        while not sent:
            poll.poll(1000)
            with self._sending:
                sent = self._push()
                if sent:
                    self._sender = None

    @property
    def unsent(self) -> int:
        """Bytes that were posted and that the socket has not taken yet."""
        return len(self._unsent)

    @property
    def unread(self) -> bool:
        """Whether something has come, or the other end was closed. Any thread may ask, also when this one is closed."""
        with self._sending:  # another thread may close it
            if self.fileno() < 0:
                return False
            poll = select.poll()  # one of its own: two threads cannot wait with the same
            poll.register(self.socket, select.POLLIN)
            return bool(poll.poll(0))

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
        with self._sending:
            self._gone = True
            self._unsent.clear()
            self.socket.close()
