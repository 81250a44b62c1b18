"""`anytime serve`: what cannot be served is one line, before anything is loaded."""

import json
import socket

import pytest

from anytime.serving.embedded import samples


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


def test_an_image_alone_is_for_the_model_that_comes_with_the_package(run):
    image = samples()[8]
    code, out, _ = run(f"predict {image} --json --device cpu")
    assert code == 0
    assert json.loads(out)["classes"][0]["class"] == "ship"


def test_a_folder_alone_is_no_image(run, tmp_path):
    code, _, err = run(f"predict {tmp_path}")
    assert code == 2
    assert "give an image too" in err
