"""An exported network in 8-bit integers against floats, both on ONNX Runtime: errors of each exit, and time.

python benchmarks/export_int8.py RUN              # a trained run's folder; its test images
python benchmarks/export_int8.py RUN DATA 40      # other images of the same classes, or where they are
"""

import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import torch
from ratio import fact, interleaved, machine, report, verdict

import anytime
from anytime.export.backend import export_run
from anytime.memory import keep_freed_memory
from anytime.training.run_folder import read_run


def main(run: Path, source: str, repeats: int) -> None:
    keep_freed_memory()
    torch.set_num_threads(1)
    net = anytime.load(run)
    assert net.preprocessing, "the run has no preprocessing"
    data = anytime.load_data(source or read_run(run)["asked"]["data"]).matching(net.preprocessing)
    assert data.test, "the data has no test images"
    print(f"{run.name}, {net.exits} exits, {len(data.test):,} test images, {machine()}")
    with tempfile.TemporaryDirectory() as place:
        floats = export_run(run, Path(place) / "float32")
        some = islice(data.batches(data.train, batch_size=64), 4)
        made = anytime.export.int8(floats, Path(place) / "int8", some, data.batches(data.test), tolerate=100)
        full, small = anytime.load_exported(floats), anytime.load_exported(made.folder)
        for name, folder in (("float32", floats), ("int8", made.folder)):
            fact(f"{name}_mb", sum(path.stat().st_size for path in folder.glob("*.onnx")) / 1e6, "MB")
    for exit, (before, after) in enumerate(zip(made.before, made.after, strict=True), start=1):
        fact(f"float32_{exit}", before)
        fact(f"int8_{exit}", after)
    verdict("int8_points_lost", 100 * (made.after[-1] - made.before[-1]), 1.0)
    for batch in (1, 32):
        x = data.normalize(data.test.pixels[:batch])  # type: ignore[union-attr]
        with torch.inference_mode():
            pairs = interleaved(lambda x=x: small(x), lambda x=x: full(x), repeats, time.thread_time)
        report(f"batch {batch}: int8 / float32, all exits", [a / b for a, b in pairs])


if __name__ == "__main__":
    run, source, repeats = [*sys.argv[1:], *("", "", "60")[len(sys.argv) - 1 :]]
    main(Path(run), source, int(repeats))
