"""``import anytime`` against ``import torch``: what a user waits for beyond torch itself.

python benchmarks/import_time.py
"""

import statistics
import subprocess
import sys
import time

from ratio import report, verdict

LIMIT = 1.15
REPEATS = 10


def seconds(module: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - start


def main() -> None:
    seconds("anytime")  # the disk's cache
    pairs = [(seconds("torch"), seconds("anytime")) for _ in range(REPEATS)]
    torch, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"torch {torch:.2f} s, anytime {ours:.2f} s")
    verdict("import_time", report("import anytime / import torch", [ours / torch for torch, ours in pairs]), LIMIT)


if __name__ == "__main__":
    main()
