"""When a request came: the kernel's word, and that of proxies that are trusted."""

import socket
import sys
import time

import pytest

from anytime.errors import AnytimeError
from anytime.serving.arrival import Proxies, age_of_data, seconds_since_epoch

CLIENT = ("10.1.2.3", 5000)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_the_kernel_knows_how_long_data_waited():
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        before = time.monotonic()
        client.sendall(b"x")
        time.sleep(0.3)  # nobody has accepted the connection
        with listener.accept()[0] as accepted:
            assert 0.25 <= age_of_data(accepted) <= time.monotonic() - before + 0.05


def test_connections_that_are_not_tcp_have_no_age():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert age_of_data(ours) == age_of_data(None) == 0.0


@pytest.mark.parametrize("text", ["t=1700000000.250", "1700000000250", "t=1700000000250000", "1700000000250000000"])
def test_proxies_write_moments_in_several_units(text):
    assert seconds_since_epoch(text) == pytest.approx(1_700_000_000.25)


@pytest.mark.parametrize("text", ["", "t=", "soon", "t=17000", "-1700000000", "t=1700000000.25s", "nan", "1" * 400])
def test_other_moments_are_refused(text):
    with pytest.raises(AnytimeError, match=r"x-request-start .*such as t=1700000000.250"):
        Proxies(["10.0.0.0/8"]).moments(CLIENT, {"x-request-start": text}, 0.0)


def test_moments_of_trusted_proxies_count():
    headers = {"x-request-start": f"t={time.time() - 2:.3f}", "x-request-deadline": f"t={time.time() + 3:.3f}"}
    came, due = Proxies(["192.168.0.1", "10.0.0.0/8"]).moments(CLIENT, headers, 100.0)
    assert came == pytest.approx(98, abs=0.5)
    assert due == pytest.approx(103, abs=0.5)
    for client in (("11.0.0.1", 1), None):
        assert Proxies(["10.0.0.0/8"]).moments(client, headers, 100.0) == (None, None)
    assert Proxies().moments(CLIENT, headers, 100.0) == (None, None)


def test_no_request_came_in_the_future():
    headers = {"x-request-start": f"t={time.time() + 100:.3f}"}
    assert Proxies(["10.0.0.0/8"]).moments(CLIENT, headers, 5.0)[0] == 5.0


def test_proxies_are_addresses():
    with pytest.raises(AnytimeError, match=r"--proxy nginx: expected an address or a network, such as 10.0.0.0/8"):
        Proxies(["nginx"])
