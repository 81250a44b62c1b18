"""A patient client in a process of its own: python honest.py PORT PICTURE. It asks until its input ends.

Five times a second it asks whether the server is alive, and every half second for a prediction within two seconds.
What took how long is printed at the end as JSON; so is how long `cat` took to give a line back, which shows how late
any process is on this machine at the moment.
"""

import http.client
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

DEADLINE = 2.0


def asked(port, method, path, body=None):
    """Status and seconds of one request on a connection of its own; the status is an error's name if there is none."""
    begun = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, body)
        reply = connection.getresponse()
        reply.read()
        status = reply.status
    except OSError as error:
        status = type(error).__name__
    finally:
        connection.close()
    return status, time.monotonic() - begun


def repeated(stop, seconds, ask, found):
    while not found or not stop.wait(seconds):
        found.append(ask())


def main(port, picture):
    content = Path(picture).read_bytes()
    stop, live, predictions, echoes = threading.Event(), [], [], []

    def echo():
        begun = time.monotonic()
        cat.stdin.write(b"\n")
        cat.stdin.flush()
        cat.stdout.readline()
        return time.monotonic() - begun

    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        work = [
            (0.2, lambda: asked(port, "GET", "/v2/health/live"), live),
            (0.5, lambda: asked(port, "POST", f"/predict?deadline={DEADLINE}s", content), predictions),
            (0.05, echo, echoes),
        ]
        threads = [threading.Thread(target=repeated, args=(stop, *each)) for each in work]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        sys.stdin.read()
        stop.set()
        for thread in threads:
            thread.join()
        cat.stdin.close()
    print(json.dumps({"live": live, "predictions": predictions, "echo": max(echoes, default=0.0)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
