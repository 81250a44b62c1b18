"""``import anytime`` against ``import torch``: what a user waits for beyond torch itself.

python benchmarks/import_time.py
"""

import statistics
import subprocess
import sys
import time

LIMIT = 1.15
REPEATS = 10


def seconds(module: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - start


def main() -> None:
    seconds("anytime")  # the disk's cache
    pairs = [(seconds("torch"), seconds("anytime")) for _ in range(REPEATS)]
    ratios = sorted(ours / torch for torch, ours in pairs)
    torch, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"torch {torch:.2f} s, anytime {ours:.2f} s; ratios {ratios[0]:.3f} to {ratios[-1]:.3f}, n={REPEATS}")
    ratio = ours / torch
    print(f"import_time ratio={ratio:.3f} limit={LIMIT} {'ok' if ratio <= LIMIT else 'short'}")


if __name__ == "__main__":
    main()
