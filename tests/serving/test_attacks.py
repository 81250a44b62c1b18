"""Attacks on a whole server: every request is answered or refused in time, the server stays alive, and ends when told.

A patient client watches from a process of its own (``honest.py``). ``pytest -m promise tests/serving/test_attacks.py``
runs all of them; ``-rA`` prints what they found.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from attackers import PICTURE, hang_up, send_json, send_pictures
from encoded_images import encoded
from honest import DEADLINE, asked
from PIL import Image
from test_wire import small_memory
from waiting import until

import anytime
from anytime.serving.embedded import FOLDER, samples
from anytime.serving.watch import GRACE

pytestmark = [
    pytest.mark.promise,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the engine's process in /proc"),
]

GENERATOR = Path(__file__).parents[2] / "benchmarks" / "serving_generator.py"
END = 20.0
"""Seconds in which a server ends after SIGTERM."""
SETTLED = {200, 503, 504}
"""An answer, a refusal, and an answer that could not be made in time."""


def saved(model, folder):
    """A network for images of 128 pixels."""
    net = anytime.create_model(model).eval()
    net.preprocessing = anytime.Preprocessing(3, (128, 128), [0.5] * 3, [0.25] * 3, [str(i) for i in range(10)])
    return anytime.save(net, folder)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return saved("resann-3-16", tmp_path_factory.mktemp("large") / "large")


@pytest.fixture(params=["embedded", "128 pixels"])
def folder(request):
    return FOLDER if request.param == "embedded" else request.getfixturevalue("large")


def engine_of(pid):
    """The process of the engine: the first one that the server has started."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return min(int(child) for file in files for child in file.read_text().split())


def in_small_memory(kilobytes, folder):
    """The command of a server with a /dev/shm of this size."""
    return [*small_memory(kilobytes), sys.executable, "-m", "anytime", "serve", "--port", "0", str(folder)]


@contextmanager
def watched(server, tmp_path, picture):
    """Watch a server meanwhile; then end it with SIGTERM, and see that nobody had to wait."""
    path = tmp_path / "picture"
    path.write_bytes(picture)
    command = [sys.executable, Path(__file__).with_name("honest.py"), str(server.port), path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as honest:
        assert honest.stdout.readline() == "ready\n"
        found = {}
        yield found
        found |= json.loads(honest.communicate()[0])
    begun = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    found["end"] = time.monotonic() - begun
    live, predictions = found["live"], found["predictions"]
    print(
        f"live {len(live)} times, at most {max(s for _, s in live):.3f} s; predictions {len(predictions)}, "
        f"{sum(status == 200 for status, _ in predictions)} answered, at most {max(s for _, s in predictions):.3f} s; "
        f"cat {found['echo']:.3f} s; end after {found['end']:.1f} s"
    )
    assert {status for status, _ in live} == {200}
    assert max(seconds for _, seconds in live) < 1 + found["echo"]
    assert {status for status, _ in predictions} <= SETTLED
    assert max(seconds for _, seconds in predictions) < DEADLINE + GRACE + 1 + found["echo"]
    assert found["end"] < END


def patient(server, count, deadline, outcomes, content=PICTURE):
    """Clients that wait for their answers; status and seconds of each."""
    path = f"/predict?deadline={deadline}s"
    threads = [
        threading.Thread(target=lambda: outcomes.append((deadline, *asked(server.port, "POST", path, content))))
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    return threads


def settled(threads, outcomes):
    """How many were answered; all others were refused, and nobody waited for longer than the deadline and the grace."""
    for thread in threads:
        thread.join()
    assert len(outcomes) == len(threads)
    assert {status for _, status, _ in outcomes} <= SETTLED
    late = max(seconds - deadline for deadline, _, seconds in outcomes)
    answered = sum(status == 200 for _, status, _ in outcomes)
    print(f"{answered} of {len(outcomes)} patient clients answered, at most {late:.2f} s after the deadline")
    assert late < GRACE + 1
    assert all(status != 504 for deadline, status, _ in outcomes if deadline > 1), (
        "admitted, had time and got no answer"
    )
    return answered


def in_flight(client):
    """How many requests the engine has."""
    (line,) = (
        line for line in client.get("/metrics").text.splitlines() if line.startswith("anytime_engine_queue_length{")
    )
    return float(line.split()[-1])


def test_clients_that_hang_up(serve, folder, tmp_path):
    with serve(folder) as server, watched(server, tmp_path, PICTURE):
        outcomes = []
        threads = patient(server, 10, 30, outcomes)
        hang_up(server.port, 1500)
        threads += patient(server, 10, 30, outcomes)
        assert settled(threads, outcomes) == 20
        hang_up(server.port, 300)  # and SIGTERM comes at once


@pytest.mark.parametrize("seconds", [2, None])
def test_an_engine_that_stands_still(serve, folder, tmp_path, seconds):
    """For two seconds, or for good: then it is replaced. What was admitted is answered if there is time."""
    with serve(folder) as server, watched(server, tmp_path, PICTURE):
        outcomes, engine = [], engine_of(server.process.pid)
        os.kill(engine, signal.SIGSTOP)
        with server.client() as client:
            threads = patient(server, 10, 60, outcomes)
            until(lambda: in_flight(client) >= 10)
        threads += patient(server, 40, 0.5, outcomes)
        hang_up(server.port, 600)
        if seconds is not None:
            time.sleep(seconds)
            os.kill(engine, signal.SIGCONT)
        assert settled(threads, outcomes) >= 10
        if seconds is None:
            until(lambda: engine_of(server.process.pid) != engine)


def refused(server, statuses):
    """Each that sent JSON got a reply, and the server needs no more memory than it says."""
    print({status: statuses.count(status) for status in statuses})
    assert set(statuses) <= {200, 400, 413, 503, 504}  # what is as many as it says is answered, if there is time
    peak = int(Path(f"/proc/{server.process.pid}/status").read_text().split("VmHWM:")[1].split()[0]) / 2**20
    print(f"the server's memory: at most {peak:.2f} GB")
    assert peak < 2


def test_json_that_is_expensive_to_read(serve, folder, tmp_path):
    with serve(folder) as server, watched(server, tmp_path, PICTURE):
        statuses = []
        for thread in send_json(server.port, folder.name, 32 if folder == FOLDER else 128, statuses):
            thread.join()
        refused(server, statuses)


def test_pictures_that_are_expensive_to_decode(serve, folder, tmp_path):
    """And photos of patient clients among them."""
    photo = encoded("JPEG", 512)
    with serve(folder) as server, watched(server, tmp_path, photo) as found:
        outcomes, threads = [], []
        for _ in range(5):
            send_pictures(server.port)
            threads += patient(server, 2, 20, outcomes, photo)
        assert settled(threads, outcomes) == len(outcomes)
        send_pictures(server.port)  # and SIGTERM comes at once
    assert any(status == 200 for status, _ in found["predictions"])


def test_shared_memory_without_room(serving_started, tmp_path):
    """Room for two inputs, of a network so small that many more are admitted on any machine."""
    folder = saved("resann-1-2", tmp_path / "small")
    with serving_started(in_small_memory(2**9, folder), tmp_path / "log") as server, watched(server, tmp_path, PICTURE):
        outcomes, engine = [], engine_of(server.process.pid)
        os.kill(engine, signal.SIGSTOP)
        threads = patient(server, 100, 60, outcomes)
        with server.client() as client:
            until(lambda: in_flight(client) > 20 or len(outcomes) == len(threads))
        with suppress(ProcessLookupError):  # it was replaced, if the machine is that busy
            os.kill(engine, signal.SIGCONT)
        assert settled(threads, outcomes) > 20
        assert "docker run --shm-size" in server.log.read_text()


def test_all_of_it_together(serving_started, large, tmp_path):
    """Room for ten inputs; an engine that stops for good while clients hang up, and send JSON and pictures."""
    with serving_started(in_small_memory(2**11, large), tmp_path / "log") as server:
        attack = [sys.executable, Path(__file__).with_name("attackers.py"), str(server.port), large.name, "128"]
        with watched(server, tmp_path, PICTURE):
            outcomes, engine = [], engine_of(server.process.pid)
            os.kill(engine, signal.SIGSTOP)
            with subprocess.Popen(attack, stdout=subprocess.PIPE) as attackers:
                threads = patient(server, 20, 60, outcomes) + patient(server, 20, 0.5, outcomes)
                statuses = json.loads(attackers.communicate()[0])
            refused(server, statuses)
            until(lambda: engine_of(server.process.pid) != engine)
            threads += patient(server, 5, 60, outcomes)
            assert settled(threads, outcomes) >= 5
            attackers = subprocess.Popen(attack, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(3)  # and SIGTERM comes while they are at it
        attackers.kill()
        attackers.wait()


def test_an_open_loop_among_attacks(serve, tmp_path):
    """Engines are killed beside all attacks, while requests go on coming: none is lost, and each answer is that of the
    network at its exit."""
    picture = next(iter(samples()))
    net = anytime.load(FOLDER)
    outputs = net(net.preprocess(Image.open(picture)))
    classes = [net.preprocessing.classes[int(logits.argmax())] for logits in outputs]
    with serve() as server, watched(server, tmp_path, picture.read_bytes()):
        load = [GENERATOR, server.port, "/predict?deadline=500ms", picture, 60, 15, 0]
        attack = [Path(__file__).with_name("attackers.py"), server.port, "cifar10", 32]
        load, attackers = (
            subprocess.Popen([sys.executable, *map(str, words)], stdout=subprocess.PIPE, text=True)
            for words in (load, attack)
        )
        for _ in range(5):
            with suppress(ProcessLookupError, ValueError):  # there is none while the server starts another
                os.kill(engine_of(server.process.pid), signal.SIGKILL)
            time.sleep(3)
        found = json.loads(load.communicate()[0])
        attackers.communicate()
    statuses = [status for _, _, status, *_ in found]
    print({status: statuses.count(status) for status in set(statuses)})
    assert len(found) > 500
    assert set(statuses) <= SETTLED | {500}  # its engine died, and there was no time for another
    answers = [(exit, name) for _, _, status, _, exit, _, name in found if status == 200]
    assert answers
    assert all(classes[exit] == name for exit, name in answers)
