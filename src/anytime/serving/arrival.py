"""When a request came: by this machine's clock, or by that of a proxy in front that is trusted."""

import re
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from struct import Struct

from anytime.errors import AnytimeError

START, DEADLINE = "x-request-start", "x-request-deadline"
"""Headers of proxies: the arrival of a request there, and its absolute deadline."""

_LAST_DATA_RECEIVED = Struct("I")
_OFFSET = 52  # of tcpi_last_data_recv in the kernel's struct tcp_info


def age_of_data(connection: "socket.socket | None") -> float:
    """Seconds since the latest data of a connection came to this machine, also if nobody has accepted it since; to the
    kernel's tick of 1 to 10 ms. 0 where the system does not tell (others than Linux, connections that are not TCP).
    """
    if connection is None or sys.platform != "linux" or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return 0.0
    content = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _OFFSET + _LAST_DATA_RECEIVED.size)
    return 1e-3 * _LAST_DATA_RECEIVED.unpack_from(content, _OFFSET)[0]


class Proxies:
    """The proxies whose timestamps are trusted.

    Args:
        addresses: such as ``10.0.0.7`` or ``10.0.0.0/8``.
    """

    def __init__(self, addresses: Iterable[str] = ()) -> None:
        self.networks = tuple(_network(address) for address in addresses)
        self._trusted = lru_cache(1024)(self._looked_up)

    def trust(self, client: tuple[str, int] | None) -> bool:
        """Whether a connection comes from a trusted proxy."""
        return bool(self.networks) and client is not None and self._trusted(client[0])

    def _looked_up(self, host: str) -> bool:
        address = ip_address(host)
        return any(address in network for network in self.networks)

    def moments(
        self, client: tuple[str, int] | None, headers: Mapping[str, str], now: float
    ) -> tuple[float | None, float | None]:
        """When a request came to the proxy and when it is due, by this process's clock; None: it does not say so.

        Args:
            client: address and port of the connection.
            headers: of the request.
            now: this process's time.
        """
        if not self.trust(client):
            return None, None
        wall = time.time()
        came, due = (
            None if headers.get(name) is None else now + (seconds_since_epoch(headers[name], name) - wall)
            for name in (START, DEADLINE)
        )
        return None if came is None else min(came, now), due  # clocks of two machines differ


def _network(address: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(address)
    except ValueError as error:
        raise AnytimeError(f"--proxy {address}: expected an address or a network, such as 10.0.0.0/8") from error


def seconds_since_epoch(text: str, name: str = START) -> float:
    """A moment as proxies write it: seconds, milliseconds, microseconds or nanoseconds since 1970, told by its digits.

    Examples:
        >>> seconds_since_epoch("t=1700000000.250"), seconds_since_epoch("1700000000250")
        (1700000000.25, 1700000000.25)
    """
    match = re.fullmatch(r"(?:t=)?([0-9]{10}|[0-9]{13}|[0-9]{16}|[0-9]{19})(\.[0-9]{1,9})?", text.strip())
    if not match:
        raise AnytimeError(
            f"{name} {text[:40]}: expected seconds since 1970, such as t=1700000000.250 (nginx: t=${{msec}})"
        )
    return float(match[1] + (match[2] or "")) / 10 ** (len(match[1]) - 10)
