"""What it costs to be stoppable: steps(x) against a bare loop over all exits, predict(exits=L) against a plain network.

Memory that is freed stays with the process: otherwise glibc returns it to the system or keeps it depending on where it
lies, and one of the two rivals pays thousands of page faults more than the other for no reason of its own.

It runs on one thread and counts the time that the processor spent on it: on a busy machine a run of 8 ms is interrupted
more often than not, and what passed on the clock then says little.

python benchmarks/steps.py                       # resann-9-16, batches 1 and 32
python benchmarks/steps.py resann-9-16 60
"""

import sys
import time

import torch
from ratio import interleaved, machine, report, verdict

import anytime
from anytime.memory import keep_freed_memory


def main(name: str, repeats: int) -> None:
    keep_freed_memory()
    torch.set_num_threads(1)
    net = anytime.create_model(name).eval()
    plain = torch.nn.Sequential(*net.stages, net.heads[-1])
    print(f"{name}, {net.exits} exits, {machine()}")
    for batch in (1, 32):
        x = torch.randn(batch, 3, 32, 32)

        def bare(x: torch.Tensor = x) -> list[torch.Tensor]:
            logits = []
            for stage, head in zip(net.stages, net.heads, strict=True):
                x = stage(x)
                logits.append(head(x))
            return logits

        with torch.inference_mode():
            pairs = interleaved(lambda x=x: list(net.steps(x)), bare, repeats, time.thread_time)
            ratio = report(f"batch {batch}: steps / bare loop over all exits", [a / b for a, b in pairs])
            verdict(f"steps_batch_{batch}", ratio, 1.10)
            whole = lambda x=x: anytime.predict(net, x, exits=net.exits)  # noqa: E731
            pairs = interleaved(whole, lambda x=x: plain(x), repeats, time.thread_time)
            ratio = report(f"batch {batch}: predict / network without exits", [a / b for a, b in pairs])
            verdict(f"predict_batch_{batch}", ratio, 1.05)


if __name__ == "__main__":
    name, repeats = [*sys.argv[1:], *("resann-9-16", "100")[len(sys.argv) - 1 :]]
    main(name, int(repeats))
