"""Run an exported anytime network under a deadline: needs onnxruntime and numpy, no PyTorch. Copy this file and use it.

anytime export runs/a --to onnx                      # where PyTorch is
python run_exported.py runs/a/onnx cat.jpg 20        # the best answer within 20 ms (images need Pillow)
python run_exported.py runs/a/onnx batch.npy         # arrays as the network takes them; no deadline: the last exit
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime


class Exported:
    """The graphs of a folder that `anytime export` wrote."""

    def __init__(self, folder, threads=1):
        folder = Path(folder)
        self.about = json.loads((folder / "anytime.json").read_text(encoding="utf-8"))
        if (self.about["format"], self.about["backend"]) != (1, "onnx"):
            raise ValueError(f"{folder} was exported by another version or for another runtime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.stages, self.heads = (
            [(graph, onnxruntime.InferenceSession(folder / graph["file"], options)) for graph in self.about[kind]]
            for kind in ("stages", "heads")
        )
        self.seconds = [0.0] * len(self.stages)  # the fastest time of each stage with its head, as measured so far

    def walk(self, *inputs):
        """Run one stage after another; after each, yield a function that gives the logits of its exit."""
        values = dict(zip(self.about["input"], inputs, strict=True))
        for stage, head, state in zip(self.stages, self.heads, self.about["states"], strict=True):
            values |= run(stage, values)
            values = {name: values[name] for name in state}
            yield lambda head=head, values=values: run(head, values)["logits"]

    def predict(self, *inputs, deadline=float("inf")):
        """Logits and exit of the best prediction within `deadline` seconds; the first exit is always waited for."""
        start = before = time.perf_counter()
        for exit, answer in enumerate(self.walk(*inputs)):
            now = time.perf_counter()
            known = self.seconds[exit]
            self.seconds[exit] = min(known, now - before) if known else now - before
            before = now
            last = exit + 1 == len(self.stages)
            if last or now - start + self.seconds[exit + 1] * 1.1 >= deadline:
                return answer(), exit
        raise AssertionError("a network has at least one exit")


def run(graph_and_session, values):
    graph, session = graph_and_session
    made = session.run(graph["outputs"], {name: values[name] for name in graph["inputs"]})
    return dict(zip(graph["outputs"], made, strict=True))


def read(path, prepare):
    """The input: an array from a file, or an image resized, cropped and normalized as in training."""
    if path.endswith(".npy"):
        return np.load(path)
    from PIL import Image

    height, width = prepare["size"]
    image = Image.open(path).convert("RGB" if prepare["channels"] == 3 else "L")
    box_width = min(image.width, image.height * (width / height)) * prepare["crop"]
    box_height = min(image.height, image.width * (height / width)) * prepare["crop"]
    left, top = (image.width - box_width) / 2, (image.height - box_height) / 2
    box = (left, top, left + box_width, top + box_height)
    resized = image.resize((width, height), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
    pixels = np.asarray(resized, np.float32).reshape(height, width, -1) / 255
    normal = (pixels - np.array(prepare["mean"])) / np.array(prepare["std"])
    return normal.transpose(2, 0, 1)[None].astype(np.float32)


def main(folder, path, milliseconds="inf"):
    net = Exported(folder)
    prepare = net.about["preprocessing"] or {}
    x = read(path, prepare)
    for _ in range(3):  # the first run of a graph is slow; these also measure the stages
        net.predict(x)
    start = time.perf_counter()
    logits, exit = net.predict(x, deadline=float(milliseconds) / 1000)
    took = time.perf_counter() - start
    best = int(logits[0].argmax())
    name = (prepare.get("classes") or {}) and prepare["classes"][best]
    print(
        f"exit {net.about['exits'][exit]} of {net.about['exits'][-1]}, {1000 * took:.1f} ms: class {best} {name or ''}"
    )
    print(json.dumps({"exit": exit, "class": best, "logits": logits[0].tolist()}))


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
