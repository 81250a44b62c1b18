"""`anytime serve`: what cannot be served is one line, before anything is loaded."""

import socket

import pytest


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--host 0.0.0.0", "--token-file that clients must know"),
        ("--host ::", "--token-file that clients must know"),
        ("--port 70000", "--port=70000"),
        ("--engines 0", "--engines=0"),
        ("--queue 0", "--queue=0"),
        ("--token-file nowhere", "cannot read a token from nowhere"),
        ("--token-file short", "at least 16 characters"),
        ("nowhere --port 0", "nowhere is not a saved model"),
        ("a/same b/same", "the same name"),
    ],
)
def test_what_cannot_be_served_is_one_line(run, tmp_path, words, reason):
    (tmp_path / "short").write_text("too short")
    code, out, err = run(f"serve {words}")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert reason in err


def test_a_port_in_use_is_one_line(run):
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, _, err = run(f"serve --port {other.getsockname()[1]}")
    assert code == 2
    assert err.count("\n") == 1
    assert "choose another --port" in err
