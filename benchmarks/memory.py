"""Peak memory of a training step with all exits against that of the same backbone with its last exit alone.

    python benchmarks/memory.py

Each is measured in a process of its own, less what the process has before its first step. There is no limit to keep:
the figure is stated.
"""

import subprocess
import sys

from ratio import report, verdict

PROGRAM = """
import resource, sys, torch, anytime
sys.path.insert(0, sys.argv[2])
from exit_tax import trainer
exits = {"exits": [27]} if sys.argv[1] == "plain" else {}
net = anytime.create_model("resann-9-16", **exits)
x = torch.randn(128, 3, 32, 32)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step = trainer(net, x, torch.randint(10, (128,)))
for _ in range(3):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def peak(which: str) -> int:
    """Kilobytes that training adds to a fresh process."""
    folder = __file__.rpartition("/")[0]
    command = [sys.executable, "-c", PROGRAM, which, folder]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    pairs = [(peak("all"), peak("plain")) for _ in range(3)]
    print(f"all exits {pairs[0][0] / 1024:.0f} MiB, last exit alone {pairs[0][1] / 1024:.0f} MiB")
    verdict("memory", report("peak memory, all exits / last exit", [a / b for a, b in pairs]), float("inf"))


if __name__ == "__main__":
    main()
