"""The runners in examples/: one file each, without PyTorch, answering as the network does."""

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import anytime

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
MODULES = EXAMPLES / "node_modules"
HEADERS = Path(os.environ.get("ONNXRUNTIME_INCLUDE", "/usr/include/onnxruntime"))
needs_node = pytest.mark.skipif(
    not (MODULES / "onnxruntime-node").is_dir() or shutil.which("node") is None,
    reason="needs Node and its packages: make promise-tools",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An exported network with weights that several stages share, and an input in files."""
    folder = tmp_path_factory.mktemp("runner")
    torch.manual_seed(0)
    net = anytime.create_model("resann-2-8").eval()
    net.stages[5].conv2 = net.stages[4].conv2
    x = torch.randn(1, 3, 32, 32)
    anytime.export.onnx(net, x, folder / "onnx")
    assert (folder / "onnx/shared.bin").exists()
    np.save(folder / "input.npy", x.numpy())
    (folder / "input.json").write_text(json.dumps(x.flatten().tolist()))
    with torch.no_grad():
        (folder / "expected.json").write_text(json.dumps([logits[0].tolist() for logits in net(x)]))
    return folder


def check(folder, answer, exit):
    expected = json.loads((folder / "expected.json").read_text())
    assert answer["exit"] == exit % len(expected)
    assert answer["logits"] == pytest.approx(expected[exit], abs=1e-4)
    assert answer["class"] == int(np.argmax(expected[exit]))


def answer_of(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stderr
    shown, line = done.stdout.splitlines()
    assert re.match(r"exit \d+ of 6", shown)
    return json.loads(line)


@pytest.mark.parametrize(("deadline", "exit"), [([], -1), (["60000"], -1), (["0"], 0)])
def test_python_without_torch(folder, deadline, exit):
    code = "import sys, runpy; sys.modules['torch'] = None; del sys.argv[0]; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, EXAMPLES / "run_exported.py", folder / "onnx", folder / "input.npy"]
    check(folder, answer_of([*map(str, command), *deadline]), exit)


@pytest.mark.promise
def test_python_in_an_environment_without_torch(folder, tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "onnxruntime", "numpy"], check=True, env=environment)
    assert subprocess.run([python, "-c", "import torch"], env=environment, stderr=subprocess.DEVNULL).returncode
    command = [python, EXAMPLES / "run_exported.py", folder / "onnx", folder / "input.npy"]
    check(folder, answer_of(command, env=environment), -1)


def test_python_prepares_images_as_training_does(tmp_path):
    image = pytest.importorskip("PIL.Image")
    import runpy

    runner = runpy.run_path(str(EXAMPLES / "run_exported.py"))
    prepare = anytime.Preprocessing(3, (24, 32), [0.4, 0.5, 0.6], [0.2, 0.3, 0.4], (), 0.875)
    pixels = torch.randint(256, (50, 70, 3), dtype=torch.uint8).numpy()
    image.fromarray(pixels).save(tmp_path / "a.png")
    from dataclasses import asdict

    found = runner["read"](str(tmp_path / "a.png"), asdict(prepare))
    torch.testing.assert_close(torch.from_numpy(found), prepare(tmp_path / "a.png").contiguous(), atol=1e-5, rtol=1e-5)


@pytest.mark.promise
@pytest.mark.skipif(
    shutil.which("g++") is None or not (HEADERS / "onnxruntime_cxx_api.h").is_file(),
    reason="needs g++, nlohmann/json and ONNX Runtime's headers (Debian 13: libonnxruntime-dev), $ONNXRUNTIME_INCLUDE",
)
def test_cpp(folder, tmp_path):
    """Linked with the library that is in the Python package, newer than the headers or as old."""
    import onnxruntime

    library = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    (tmp_path / "libonnxruntime.so.1").symlink_to(library)  # the name that the linked program looks for
    options = ["-std=c++17", "-Wall", "-Werror", "-I", HEADERS, library, f"-Wl,-rpath,{tmp_path}"]
    subprocess.run(["g++", EXAMPLES / "run_exported.cpp", *options, "-o", tmp_path / "run"], check=True)
    np.load(folder / "input.npy").tofile(tmp_path / "input.bin")
    command = [tmp_path / "run", folder / "onnx", tmp_path / "input.bin"]
    check(folder, answer_of(command), -1)
    check(folder, answer_of([*command, "0"]), 0)


@needs_node
@pytest.mark.promise
@pytest.mark.parametrize(("deadline", "exit"), [([], -1), (["0"], 0)])
def test_javascript_in_node(folder, deadline, exit):
    command = ["node", EXAMPLES / "run_exported.mjs", folder / "onnx", folder / "input.json", *deadline]
    check(folder, answer_of(command), exit)


@needs_node
@pytest.mark.promise
@pytest.mark.parametrize(("deadline", "exit"), [("", -1), ("?deadline=0", 0)])
def test_javascript_in_a_browser(folder, tmp_path, deadline, exit):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None or not (MODULES / "onnxruntime-web").is_dir():
        pytest.skip("needs Chromium, and onnxruntime-web beside onnxruntime-node")
    for name in ("run_exported.mjs", "run_exported.html"):
        shutil.copy(EXAMPLES / name, tmp_path)
    shutil.copytree(MODULES / "onnxruntime-web/dist", tmp_path / "ort")
    shutil.copytree(folder / "onnx", tmp_path / "onnx")
    shutil.copy(folder / "input.json", tmp_path)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    handler.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = f"http://127.0.0.1:{server.server_port}/run_exported.html{deadline}"
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
        command = [browser, *options, "--virtual-time-budget=60000", "--dump-dom", page]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        server.shutdown()
    (shown,) = re.findall(r'<p id="answer">(.*?)</p>', done.stdout)
    check(folder, json.loads(shown), exit)
