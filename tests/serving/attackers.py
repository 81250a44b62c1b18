"""Clients that attack a server. All of them side by side: python attackers.py PORT MODEL PIXELS.

At the end it prints the status of each reply to JSON.
"""

import json
import socket
import sys
import threading
from contextlib import suppress

from encoded_images import encoded, many_scans, packed_text

PICTURE = encoded()


def sent(port, path, content, header=""):
    """A connection on which a whole request was sent."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{header}Content-Length: {len(content)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", port), timeout=120)
    with suppress(ConnectionError):
        connection.sendall(head.encode() + content)
    return connection


def hang_up(port, count):
    """Clients that send a whole request and are gone."""
    for _ in range(count):
        with suppress(ConnectionError):
            sent(port, "/predict?deadline=30s", PICTURE).close()


def bodies(pixels):
    """Bodies of a few megabytes at most that are expensive to read, by name."""

    def tensor(datatype, shape, data, name="input"):
        described = {"name": name, "shape": shape, "datatype": datatype, "data": data}
        return json.dumps({"inputs": [described]}, separators=(",", ":")).encode()

    image, many = [1, 3, pixels, pixels], 4 * 2**20
    rows = min(64, 2_000_000 // (3 * pixels**2))
    texts = b'{"inputs":[{"name":"input","shape":[%d],"datatype":"BYTES","data":[%s]}]}'
    deep = b"[" * 900 + b"1" + b"]" * 900
    return {
        "one long text among empty ones": tensor("BYTES", [40_001], ["x" * 50_000] + [""] * 40_000),
        "a text as a number": tensor("FP32", image, ["x" * 50_000] + [""] * 40_000),
        "empty texts": texts % (10, b",".join([b'""'] * 1_300_000)),
        "as many as it says": texts % (1_300_000, b",".join([b'""'] * 1_300_000)),
        "numbers": tensor("FP32", image, [0] * 2_000_000),
        "as many numbers as it says": tensor("FP32", [rows, *image[1:]], [0] * (rows * 3 * pixels**2)),
        "a long name": tensor("FP32", image, [0], name="x" * (many - 200)),
        "many inputs": b'{"inputs":[%s]}' % b",".join([b'{"name":"a","shape":[1],"datatype":"FP32"}'] * 90_000),
        "nested": b'{"inputs":[{"name":"input","shape":[1],"datatype":"UINT64","data":%s}]}' % deep,
        "a large shape": tensor("FP32", [0, 2**40, 2**40], []),
        "parameters": b'{"inputs":[],"parameters":{%s}}' % b",".join(b'"%d":[]' % i for i in range(330_000)),
        "a long number": b'{"inputs":[{"name":"input","shape":[%s],"datatype":"FP32"}]}' % (b"9" * (many - 100)),
        "too long": b"[" * (16 * 2**20),
    }


def send_json(port, model, pixels, statuses):
    """Clients that send all of it, four times side by side; adds the status of each reply."""

    def attack(content):
        for path in (f"/v2/models/{model}/infer", "/predict?deadline=2s"):
            with sent(port, path, content, "Content-Type: application/json\r\n") as connection:
                reply = b""
                with suppress(ConnectionError):
                    reply = connection.recv(2**16)
                statuses.append(int(reply[9:12] or 0))

    threads = [
        threading.Thread(target=attack, args=(content,)) for content in bodies(pixels).values() for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    return threads


def send_pictures(port):
    """Refused ones and the most expensive allowed, with 50 ms of time, from clients that are gone."""
    for bomb in many_scans(5000, 380_000), many_scans(2000, 90), many_scans(4900, 5), encoded("JPEG", 3000):
        sent(port, "/predict?deadline=50ms", bomb).close()
    text = packed_text(b"zTXt", 25)
    for _ in range(50):
        sent(port, "/predict?deadline=50ms", text).close()


def main(port, model, pixels):
    statuses = []
    threads = [threading.Thread(target=hang_up, args=(port, 500)) for _ in range(3)]
    threads += [threading.Thread(target=send_pictures, args=(port,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in [*threads, *send_json(port, model, pixels, statuses)]:
        thread.join()
    print(json.dumps(statuses))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
