"""Milliseconds of combined exits: what answering together costs beside the network without exits.

python benchmarks/combined.py --realtime            # resann-5-16-patch2-mlpheads, batch 1, one thread
python benchmarks/combined.py runs/NAME data        # the errors of such a network, trained

Each time is divided by that of the plain backbone, all stages and the last head, run just before or after it: eager
with and without a deadline (that is never met), and exported to ONNX. The rules have random weights: only times count.
With ``--realtime`` it runs within ``anytime.realtime()``: then other programs on the machine do not count.
"""

import sys
import tempfile
from contextlib import nullcontext

import torch
from ratio import RESULTS, fact, interleaved, machine, report, verdict

import anytime
from anytime.combination import CombinedNetwork, Ensemble, Stacking
from anytime.combination.combined import spread
from anytime.evaluation import Outputs, collect
from anytime.selection import SelectedNetwork

MODEL, MIDDLE = "resann-5-16-patch2-mlpheads", 6
"""The network, and its exit at 48 % of the multiply-accumulates."""
SELECTED = (1, 4, MIDDLE, 10, 14)
GOALS = {"middle": 0.55, "last": 1.10}
JUDGED = "ensemble, 2 inputs, 5 exits"
"""What we recommend; the goals are its."""


def combined(net: anytime.Network, rule: str, inputs: int | None) -> CombinedNetwork:
    """A rule that was not fitted."""
    chosen = None if inputs is None else spread(net.exits, inputs)
    made = Stacking(net.exits, 10, chosen) if rule == "stacking" else Ensemble(net.exits, chosen)
    return CombinedNetwork(net, made).eval()


def main(repeats: int) -> None:
    """Print the ratios of each rule, with all exits and with five, and the verdicts on the recommended one."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(1, 3, 32, 32)
    plain = anytime.create_model(MODEL).eval()
    few = SelectedNetwork(plain, SELECTED)
    backbone = torch.nn.Sequential(*plain.stages, plain.heads[-1])
    onnx_plain = exported(SelectedNetwork(plain, [plain.exits - 1]), x)
    bases = {"eager": torch.inference_mode()(lambda: backbone(x)), "ONNX": lambda: anytime.predict(onnx_plain, x)}
    print(f"{MODEL}, batch 1, {machine()}")
    for what, base in bases.items():
        times = interleaved(base, base, repeats)
        fact(f"plain_{what}_ms", 1000 * sorted(first for first, _ in times)[len(times) // 2], "ms")
    for exits, net in (("15 exits", plain), ("5 exits", few)):
        measure(f"each exit alone, {exits}", net, x, bases, repeats)
        for rule in ("stacking", "ensemble"):
            for inputs in (None, 2):
                name = f"{rule}, {'all' if inputs is None else inputs} inputs, {exits}"
                measure(name, combined(net, rule, inputs), x, bases, repeats)


def errors(run: str, source: str) -> None:
    """Test errors in the middle and at the end: ensembles of validation images, stacks of training images."""
    torch.set_num_threads(1)
    data, plain = anytime.load_data(source), anytime.load(run).eval()
    splits = [collect(plain, data.batches(split)) for split in (data.train, data.validation, data.test)]
    print(f"{run}, {machine()}")
    for exits, chosen in (("15 exits", list(range(plain.exits))), ("5 exits", list(SELECTED))):
        train, validation, test = [Outputs(each.logits[chosen], each.labels) for each in splits]
        middle, last = chosen.index(MIDDLE), len(chosen) - 1
        keep(f"each exit alone, {exits}", test.logits, test.labels, middle)
        for rule, known in (("stacking", train), ("ensemble", validation)):
            for inputs in (None, 4, 3, 2, 1):
                if inputs is not None and inputs >= last:
                    continue
                heads = None if inputs is None else spread(len(chosen), inputs)
                made = Stacking(len(chosen), inputs=heads) if rule == "stacking" else Ensemble(len(chosen), heads)
                made.fit(known)
                answers = [made(i, list(test.logits[made.heard(i)])) for i in range(len(chosen))]
                name = f"{rule}, {'all' if inputs is None else inputs} inputs, {exits}"
                keep(name, torch.stack(answers), test.labels, middle)


def keep(name: str, logits: torch.Tensor, labels: torch.Tensor, middle: int) -> None:
    """The errors of the exit in the middle and of the last one, and their mean over all exits."""
    wrong = Outputs(logits, labels).wrong.double().mean(1)
    print(f"{name}: middle {wrong[middle]:.2%}, last {wrong[-1]:.2%}, mean {wrong.mean():.2%}", flush=True)
    found = {"middle": wrong[middle], "last": wrong[-1], "mean": wrong.mean()}
    RESULTS["facts"] |= {f"{name}: error, {what}": value.item() for what, value in found.items()}


def exported(net: anytime.Network, x: torch.Tensor) -> anytime.Network:
    """The same on ONNX Runtime."""
    return anytime.load_exported(anytime.export.onnx(net, x, tempfile.mkdtemp()))


def measure(name: str, net: anytime.Network, x: torch.Tensor, bases: dict, repeats: int) -> None:
    """Time the exit in the middle and the last one."""
    middle = MIDDLE if net.exits > len(SELECTED) else SELECTED.index(MIDDLE)
    for backend, runs in (("eager", net), ("ONNX", exported(net, x))):
        for what, exit in (("middle", middle), ("last", net.exits - 1)):
            for limit, deadline in (("", None), (", deadline", 60.0)):

                def ours(runs: anytime.Network = runs, exit: int = exit, deadline: float | None = deadline) -> None:
                    anytime.predict(runs, x, exits=exit + 1, deadline=deadline)

                pairs = interleaved(ours, bases[backend], repeats)
                ratio = report(f"{name}: {backend}{limit}, {what}", [a / b for a, b in pairs])
                if name == JUDGED:
                    verdict(f"combined_{backend.lower()}_{what}{limit[2:] and '_deadline'}", ratio, GOALS[what])


if __name__ == "__main__":
    options = [each for each in sys.argv[1:] if each.startswith("-")]
    if rest := [each for each in sys.argv[1:] if not each.startswith("-")]:
        errors(*rest)
    else:
        with anytime.realtime() if "--realtime" in options else nullcontext():
            main(80)
