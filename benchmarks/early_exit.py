"""Early exit per sample: wall-clock time of a batch whose samples leave early against the whole network.

python benchmarks/early_exit.py RUN              # a trained run's folder; its test images, half of the MACs, batch 256
python benchmarks/early_exit.py RUN DATA 0.5 256 40   # other images of the same classes, or where they are
"""

import sys
from pathlib import Path

import torch
from ratio import interleaved, machine, report, verdict

import anytime
from anytime.evaluation import collect
from anytime.training.run_folder import read_run


def main(run: Path, source: str, part: float, batch: int, repeats: int) -> None:
    net = anytime.load(run)
    assert net.preprocessing, "the run has no preprocessing"
    data = anytime.load_data(source or read_run(run)["asked"]["data"]).matching(net.preprocessing)
    policy = anytime.calibrate(net, data.batches(data.validation), part, unit="fraction")
    test = collect(net, data.batches(data.test))
    expected = policy.choose_exits(test.logits)

    answers = [policy.predict(net, x) for x, _ in data.batches(data.test, batch_size=batch)]
    exits = torch.cat([answer.exits for answer in answers])
    error = (torch.cat([answer.logits for answer in answers]).argmax(-1) != test.labels).double().mean().item()
    some = torch.arange(0, len(test.labels), max(1, len(test.labels) // 500))
    x = data.normalize(data.test.pixels[some])  # type: ignore[union-attr]
    alone = [policy.predict(net, one[None]) for one in x]
    together = torch.cat([answer.logits for answer in answers])[some]
    worst = (torch.cat([answer.logits for answer in alone]) - together).abs().max().item()
    moved = int((torch.cat([answer.exits for answer in alone]) != exits[some]).sum())
    spent, last = policy.cost(exits), test.wrong[-1].double().mean().item()
    print(f"{run.name}, {len(exits):,} test images, batch {batch}, {machine()}")
    print(f"error {error:.2%} at {spent / policy.costs[-1]:.1%} of the MACs; all to the last exit {last:.2%}")
    print(f"{len(some)} images one by one: {moved} left elsewhere, logits differ by at most {worst:.1e}")
    print(f"left at another exit than by every exit's logits: {int((exits != expected).sum())}")

    batches = [x for x, _ in data.batches(data.test, batch_size=batch)][:8]
    shares = [policy.cost(policy.predict(net, x).exits) / policy.costs[-1] for x in batches]
    mean = sum(shares) / len(shares)
    print(f"{len(batches)} batches timed: {mean:.1%} of the MACs, {min(shares):.1%} to {max(shares):.1%}")
    pairs = []
    with torch.inference_mode():
        for x in batches:
            pairs += interleaved(lambda x=x: policy.predict(net, x), lambda x=x: net(x, [-1]), max(1, repeats // 8))
    verdict("early_exit_cost_off_budget", abs(spent / policy.budget - 1), 0.03)
    verdict("early_exit_one_by_one", worst, 1e-4)
    verdict("early_exit_time", report("time: early exits / whole network, last head", [a / b for a, b in pairs]), 0.60)


if __name__ == "__main__":
    run, source, part, batch, repeats = [*sys.argv[1:], *("", "", "0.5", "256", "40")[len(sys.argv) - 1 :]]
    main(Path(run), source, float(part), int(batch), int(repeats))
