"""The mean error over uniform deadlines with 5 selected exits, 5 evenly spaced ones, and all.

python benchmarks/selected.py runs/NAME data

Exits are chosen by the errors on the validation images and times measured in the same run; errors are of the test
images. A deadline is uniform up to the time of the last exit; one before the first exit counts as a wrong answer.
"""

import sys
from contextlib import nullcontext

import torch
from ratio import fact, machine, verdict

import anytime
from anytime.combination.combined import spread
from anytime.evaluation import collect
from anytime.selection import best_exits, mean_error

COUNTS = (3, 5, 8)


def main(run: str, source: str, realtime: bool) -> None:
    """Print the errors and a verdict."""
    torch.set_num_threads(1)
    data, net = anytime.load_data(source), anytime.load(run).float().eval()
    known, test = (
        collect(net, data.batches(split)).wrong.double().mean(1).tolist() for split in (data.validation, data.test)
    )
    with anytime.realtime() if realtime else nullcontext():
        seconds = anytime.profile(net, torch.randn(1, *net.input_shape()), repeats=200).alone
    print(f"{run}, {net.exits} exits, {machine()}, {1000 * seconds[-1]:.2f} ms to the last exit")
    every = mean_error(test, seconds, range(net.exits))
    fact("selected_all", every)
    for count in COUNTS:
        chosen = best_exits(known, seconds, count)
        even = [*spread(net.exits, count - 1), net.exits - 1]
        print(f"{count} exits: {[exit + 1 for exit in chosen]}; evenly spaced {[exit + 1 for exit in even]}")
        ours, theirs = (mean_error(test, seconds, exits) for exits in (chosen, even))
        fact(f"selected_{count}", ours)
        fact(f"selected_{count}_even", theirs)
        if count == 5:
            verdict("selected_against_even", ours / theirs, 1.0)
            verdict("selected_against_all", ours / every, float("inf"))


if __name__ == "__main__":
    run, source = [each for each in sys.argv[1:] if not each.startswith("-")]
    main(run, source, "--realtime" in sys.argv)
