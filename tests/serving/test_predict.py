"""/predict and /stream: what the network says in this process is what clients hear."""

import base64
import io
import itertools
import json
import re

import httpx
import pytest
import torch
from encoded_images import bomb, encoded, many_scans
from PIL import Image
from waiting import until

import anytime


def expected(run_folder, content):
    """The class at every exit, and the probabilities of the last."""
    net = anytime.load(run_folder)
    with torch.inference_mode():
        logits = net(net.preprocess(Image.open(io.BytesIO(content))))
    return [net.preprocessing.classes[int(each.argmax())] for each in logits], logits[-1].softmax(-1)[0]


def too_large():
    """Numbers that float32 just holds, with random signs, so that some sum of a convolution overflows."""
    signs = torch.randint(2, (1, 8, 8), generator=torch.Generator().manual_seed(0)) * 2 - 1
    return (signs * 3.4e38).tolist()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("size", [8, 300])
def test_an_image_gets_its_class(client, run_folder, form, size):
    content = encoded(form, size)
    answer = client.post("/predict?deadline=30s", content=content).json()
    classes, probabilities = expected(run_folder, content)
    assert answer["class"] == classes[-1] == answer["top"][0]["class"]
    assert answer["probability"] == pytest.approx(float(probabilities.max()), abs=1e-4)
    assert (answer["exit"], answer["exits"], answer["complete"]) == (2, 3, True)
    assert 0 < answer["seconds"] < 30
    assert answer["macs"] > 0
    assert answer["model"] == "digits"


def test_json_holds_images_or_numbers(client, run_folder):
    content = encoded()
    straight = client.post("/predict?deadline=30s", content=content).json()
    body = {"image": base64.b64encode(content).decode(), "deadline": "30s"}
    net = anytime.load(run_folder)
    numbers = {"input": net.preprocess(Image.open(io.BytesIO(content)))[0].tolist(), "deadline": "30s"}
    wrapped = {**body, "image": base64.encodebytes(content).decode()}
    for each in (body, numbers, wrapped):
        headers = {"Content-Type": "Application/JSON; charset=utf-8"}
        for space in (0, 100_000):  # a larger body is parsed in a thread
            text = json.dumps(each) + space * " "
            answer = client.post("/predict", content=text, headers=headers).json()
            assert answer["class"] == straight["class"]
            assert answer["probability"] == pytest.approx(straight["probability"], abs=1e-5)


def events(text):
    for block in text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        yield name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_a_stream_tells_every_exit(client, run_folder):
    content = encoded(seed=3)
    reply = client.post("/stream?deadline=30s", content=content)
    assert reply.headers["content-type"].startswith("text/event-stream")
    *exits, (last_name, last) = events(reply.text)
    assert [name for name, _ in exits] == ["exit"] * 3
    assert [data["class"] for _, data in exits] == expected(run_folder, content)[0]
    assert last_name == "answer"
    assert last["class"] == exits[-1][1]["class"]
    assert last["complete"]


def test_a_deadline_that_nobody_can_keep_is_refused_at_once(client):
    reply = client.post("/predict?deadline=1us", content=encoded())
    assert reply.status_code in (503, 504)
    assert reply.json()["error"]


@pytest.mark.parametrize(
    ("path", "content", "status", "reason"),
    [
        ("/predict", b"", 400, "PNG, JPEG or WebP"),
        ("/predict", b"\x89PNG\r\n\x1a\n" + bytes(100), 400, "PNG, JPEG or WebP"),
        ("/predict", encoded("GIF"), 400, "it is none"),
        ("/predict", encoded()[:-30], 400, "cannot read"),
        ("/predict", bomb(8_000), 400, "at most 25,000,000 are allowed"),
        ("/predict", many_scans(5_000, 20), 400, "5000×5000 pixels in 26 scans"),
        ("/predict", many_scans(8, 100), 400, "more than 100 scans"),
        ("/stream", bomb(20_000), 400, "decompression bomb"),
        ("/predict?deadline=soon", encoded(), 400, "such as 20ms"),
        ("/predict?deadline=50", encoded(), 400, "with its unit (us, ms or s)"),
        ("/predict?deadline=61s", encoded(), 400, "at most 60 s"),
        ("/predict?model=nobody", encoded(), 404, "models are digits"),
        ("/stream?model=nobody", encoded(), 404, "models are digits"),
    ],
)
def test_what_cannot_be_answered_is_explained(client, path, content, status, reason):
    reply = client.post(path, content=content)
    assert reply.status_code == status
    assert reason in reply.json()["error"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"input": [1, 2]}, "shape \\[1, 8, 8\\]: data must be 64 elements"),
        ({"input": [[[1] * 32, [1] * 32]]}, "got the shape \\[1, 2, 32\\]"),
        ({"input": [[[1] * 60, [1] * 4]]}, "inhomogeneous"),
        ({"input": ["x" * 1000] + [""] * 63}, "Expected `float`, got `str`"),
        ({"input": None}, "must be 64 elements"),
        ({"input": "five"}, "must be 64 elements"),
        ({"input": [[[1e39] * 8] * 8]}, "infinite"),
        ({"input": too_large(), "deadline": "30s"}, "infinite or NaN"),
        ({"image": "aGk="}, "PNG, JPEG or WebP"),
        ({"image": "aGk=", "deadline": 50}, "deadline 50: expected a duration with its unit"),
        ({"image": "not base64!"}, "image must be base64"),
        ({"image": "é"}, "image must be base64"),
        ({"image": "data:image/png;base64,aGk="}, "nothing such as data:"),
        ({"image": "aGk=", "input": [1]}, 'either "image" or "input"'),
        ({}, 'either "image" or "input"'),
        ({"path": "/etc/passwd"}, "unknown field"),
        ([], "Expected `object`"),
    ],
)
def test_json_that_is_not_expected_is_explained(client, body, reason):
    reply = client.post("/predict", json=body)
    assert reply.status_code == 400
    assert re.search(reason, reply.json()["error"]), reply.text


def test_answers_are_counted(client):
    def counts():
        lines = client.get("/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    before = counts()
    client.post("/predict?deadline=30s", content=encoded())
    client.post("/predict", content=b"no image")
    after = counts()

    def more(name):
        return after.get(name, 0) - before.get(name, 0)

    assert more('anytime_requests_total{model="digits",outcome="answered",route="predict"}') == 1
    assert more('anytime_requests_total{model="digits",outcome="invalid",route="predict"}') == 1
    assert more('anytime_answers_total{exit="2",model="digits"}') == 1
    assert more('anytime_request_seconds_count{model="digits",route="predict"}') == 1
    assert 0 <= after['anytime_in_time_ratio{model="digits"}'] <= 1
    assert after['anytime_engine_queue_length{model="digits"}'] >= 0
    assert after['anytime_engine_slow_down_ratio{model="digits"}'] > 0


def test_the_log_has_a_line_of_json_for_every_request(client, server):
    before = len(server.requests())
    client.post("/predict?deadline=12345ms", content=encoded())
    line = until(lambda: next((line for line in server.requests()[before:] if line.get("deadline") == 12.345), None))
    assert {"time", "client", "method", "status", "seconds", "bytes"} <= line.keys()
    assert (line["path"], line["outcome"], line["exits"]) == ("/predict", "answered", [2])


def test_the_page_comes_from_this_server_alone(client):
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["content-security-policy"]
    named = [part.split('"')[0] for part in page.text.split('src="')[1:] + page.text.split('href="')[1:]]
    for path in named:
        assert path.startswith("/")
        assert client.get(path).status_code == 200, path
    assert client.get("/page/../server.py").status_code == 404
    assert client.get("/page/%2e%2e%2fserver.py").status_code == 404


def test_a_rush_hour_reports_what_becomes_of_it(client):
    reply = client.post("/rush?rate=50&seconds=0.5&deadline=5s", timeout=httpx.Timeout(60))
    found = list(events(reply.text))
    assert {name for name, _ in found} == {"tick", "end"}
    last = found[-1][1]
    assert last["sent"] == last["answered"] + last["refused"] + last["failed"] > 0
    assert sum(sum(data["exits"]) for _, data in found) == last["answered"]
    reports = [data for _, data in found]
    for earlier, later in itertools.pairwise(reports):
        for name in ("seconds", "sent", "answered", "in_time", "late", "refused", "failed"):
            assert earlier[name] <= later[name]
    assert [len(data["exits"]) for data in reports] == [3] * len(reports)
    assert (last["in_time"] == last["answered"]) == (last["late"] == 0)
    assert client.post("/rush?rate=1e9").status_code == 400
    assert client.post("/rush?rate=5000").status_code == 400
