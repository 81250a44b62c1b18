"""An open-loop client in a process of its own: sends requests at moments fixed beforehand, whatever has been answered.

    python benchmarks/serving_generator.py PORT PATH BODY RATE SECONDS SEED

Arrivals are Poisson. Each request goes over a free connection, or a new one; its seconds count from the moment at
which it is sent until the last byte of the reply is read. Prints one JSON object: for every request ``[moment, lag,
status, seconds, exit, late, class]``: when it was due, by how much it was sent later, the status (0: the connection
broke; -1: no reply came within ten seconds), and what the reply says of its exit, lateness and class.
"""

import gc
import json
import random
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any

OPEN = 128
"""Connections that are open before the first request."""
PATIENCE = 10.0


class OpenLoop:
    """Sends and reads in one thread.

    Args:
        port: of the server.
        request: the bytes of every request.
    """

    def __init__(self, port: int, request: bytes) -> None:
        self.port, self.request = port, request
        self.epoll = select.epoll()
        self.sockets: dict[int, socket.socket] = {}
        self.free = [self._connect() for _ in range(OPEN)]
        self.asked: dict[int, tuple[int, float, bytearray]] = {}
        self.outcomes: dict[int, list[Any]] = {}

    def _connect(self) -> int:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        number = connection.fileno()
        self.sockets[number] = connection
        self.epoll.register(number, select.EPOLLIN)
        return number

    def run(self, moments: list[float]) -> list[list[Any]]:
        """Send a request at each moment, in seconds from now; what became of each."""
        begin, lags = time.perf_counter() + 0.1, []
        for i, moment in enumerate(moments):
            self._read_until(begin + moment)
            number = self.free.pop() if self.free else self._connect()
            sent = time.perf_counter()
            lags.append(sent - begin - moment)
            self.asked[number] = i, sent, bytearray()
            self.sockets[number].send(self.request)
        end = time.perf_counter() + PATIENCE
        while self.asked and time.perf_counter() < end:
            self._read_until(min(end, time.perf_counter() + 0.05))
        nothing = [-1, PATIENCE, None, None, None]
        return [[moment, lags[i], *self.outcomes.get(i, nothing)] for i, moment in enumerate(moments)]

    def _read_until(self, moment: float) -> None:
        while True:
            left = moment - time.perf_counter()
            # epoll itself waits for whole milliseconds
            if not select.select([self.epoll], [], [], max(left, 0.0))[0]:
                if left <= 0:
                    return
                continue
            for number, _ in self.epoll.poll(0):
                self._read(number)

    def _read(self, number: int) -> None:
        try:
            part = self.sockets[number].recv(65536)
        except OSError:
            part = b""
        now = time.perf_counter()
        i, sent, content = self.asked.get(number, (-1, now, bytearray()))
        content += part
        head, _, body = bytes(content).partition(b"\r\n\r\n")
        start = head.lower().find(b"content-length: ")
        length = int(head[start + 16 :].split(b"\r\n", 1)[0]) if start >= 0 else None
        if part and (length is None or len(body) < length):
            return
        self.asked.pop(number, None)
        if part and b"connection: close" not in head.lower():
            self.free.append(number)
        else:
            self.epoll.unregister(number)
            self.sockets.pop(number).close()
            if number in self.free:
                self.free.remove(number)
        if i >= 0:
            said = json.loads(body) if part else {}
            status = int(head[9:12]) if part else 0
            self.outcomes[i] = [status, now - sent, said.get("exit"), said.get("late"), said.get("class")]


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """Moments of arrivals."""
    draw, moment, moments = random.Random(seed), 0.0, []
    while (moment := moment + draw.expovariate(rate)) < seconds:
        moments.append(moment)
    return moments


def main() -> None:
    port, path, body, rate, seconds, seed = sys.argv[1:]
    content = Path(body).read_bytes()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    client = OpenLoop(int(port), head.encode() + content)
    gc.disable()
    print(json.dumps(client.run(poisson(float(rate), float(seconds), int(seed)))))


if __name__ == "__main__":
    main()
