"""Two processes of one thread each, data-parallel, against one process of two threads: images a second.

python benchmarks/data_parallel.py
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ratio import report, verdict

COMMAND = "train --data {data} --model resann-7-16 --epochs 2 --batch-size 128 --subset 1024 --recipe cifar --output"


def speed(launcher: list[str], threads: int, folder: Path, data: str) -> float:
    """Images a second in the second epoch of a run."""
    command = [*launcher, "-m", "anytime", *COMMAND.format(data=data).split(), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return json.loads((folder / "log.jsonl").read_text().splitlines()[1])["samples_per_second"]


def make_images(folder: Path) -> str:
    """32×32 images of noise in the Hub's form: the speed does not depend on what they show."""
    import io

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    draw = np.random.default_rng(0)
    for split, n in {"train": 1400, "test": 20}.items():
        rows = []
        for _ in range(n):
            buffer = io.BytesIO()
            Image.fromarray(draw.integers(256, size=(32, 32, 3), dtype=np.uint8)).save(buffer, "PNG")
            rows.append({"bytes": buffer.getvalue(), "path": None})
        kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        table = pa.table({"img": pa.array(rows, kind), "label": pa.array([i % 10 for i in range(n)])})
        pq.write_table(table, folder / f"{split}.parquet")
    return str(folder)


def main(repeats: int = 5) -> None:
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        data = make_images(Path(name))
        for i in range(repeats):
            one = speed([sys.executable], 2, Path(name) / f"one-{i}", data)
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            two = speed(launcher, 1, Path(name) / f"two-{i}", data)
            print(f"one process of two threads {one:.0f} images/s, two processes of one thread {two:.0f}")
            ratios.append(two / one)
    verdict("data_parallel", report("images/s, two processes / one", ratios), 0.9, least=True)


if __name__ == "__main__":
    main()
