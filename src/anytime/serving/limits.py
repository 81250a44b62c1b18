"""Limits of what clients may send and ask for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds that hold for every client.

    Args:
        body: bytes of a request's body.
        bodies: bytes of all bodies that are being read or decoded at one time.
        header: bytes of a request's line and headers.
        pixels: of an image; looked at before it is decoded.
        rows: samples in one inference request.
        connections: open at one time.
        streams: open at one time.
        read: seconds that a client may take to send its headers, and again to send its body.
        idle: seconds that a connection is kept without a request.
        deadline: the longest deadline, in seconds; also how long a shutdown waits for requests.
        drain: seconds after SIGTERM in which requests are still taken, while ``ready`` says 503.
        grace: seconds of a shutdown in which requests that have begun to arrive can still be admitted.
        default: the deadline of requests without one, in seconds.
    """

    body: int = 16 * 2**20
    bodies: int = 256 * 2**20
    header: int = 16 * 2**10
    pixels: int = 25_000_000
    rows: int = 64
    connections: int = 768
    streams: int = 32
    read: float = 10.0
    idle: float = 15.0
    deadline: float = 60.0
    drain: float = 0.0
    grace: float = 5.0
    default: float = 1.0
