"""What risk control, conformal sets and combined exits promise, on many random splits of trained networks' outputs.

python benchmarks/guarantees.py --data DIR RUN [RUN …] [--splits 1000] [--json]

RUN is the folder of a trained network, DIR holds the data sets as for ``python -m experiments``. The outputs on all
validation and test images are computed once and kept in runs/outputs. In each split as many of them as there are
validation images, drawn at random, calibrate; the others tell what comes of it.
"""

import argparse
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from ratio import RESULTS, machine, verdict
from safetensors.torch import load_file, save_file

import anytime
from anytime.combination.combined import RULES
from anytime.combination.product import share_getting_worse
from anytime.evaluation import Outputs, collect
from anytime.files import read_json
from anytime.inference.conformal import fit_sets
from anytime.inference.risk import candidates, exits_at, gap_losses, last_safe, surest
from anytime.inference.temperature import fit_temperatures

sys.path.append(str(Path(__file__).parents[1]))  # the project's root, where experiments/ is
from experiments.caching import Caching
from experiments.runner import find_data

RISKS = (0.005, 0.01, 0.02)
DELTA = 0.05
COVERAGE = 0.95
FALL = 0.1
KEPT = Path("runs", "outputs")
COMBINATIONS: dict[str, dict[str, Any]] = {
    "ensemble": {},
    "product, power=1": {"power": 1},
    "product": {},
    "product, power=8": {"power": 8},
    "caching": {},
}


def outputs_of(run: Path, folder: Path) -> tuple[Outputs, int, list[float]]:
    """Outputs on validation and test images, how many of them are validation images, and the costs of the exits."""
    net, kept = anytime.load(run), KEPT / f"{run.name}.safetensors"
    data = anytime.load_data(
        str(find_data(folder, read_json(run / "run.json")["data"]["name"].split("-")[0])), show=False
    )
    data = data.matching(net.preprocessing)
    if not kept.is_file():
        parts = [collect(net, data.batches(images)) for images in (data.validation, data.test)]
        logits, labels = torch.cat([p.logits for p in parts], 1), torch.cat([p.labels for p in parts])
        kept.parent.mkdir(parents=True, exist_ok=True)
        save_file({"logits": logits, "labels": labels, "held_out": torch.tensor(len(parts[0].labels))}, kept)
    found = load_file(kept)
    costs = anytime.costs(net, torch.empty(1, *data.shape, device="meta")).macs
    return Outputs(found["logits"], found["labels"]), int(found["held_out"]), [float(macs) for macs in costs]


def rows(outputs: Outputs, which: torch.Tensor) -> Outputs:
    return Outputs(outputs.logits[:, which], outputs.labels[which])


class Split(NamedTuple):
    """What came of one split; the first three for every threshold that was tried."""

    spent: torch.Tensor
    """Average cost of a held-out sample."""
    lost: torch.Tensor
    """Accuracy lost on the new samples."""
    new_spent: torch.Tensor
    taken: dict[str, int]
    """By the way to choose one, the threshold."""
    covered: dict[str, list[float]]
    """Coverage at each exit, then at all at once."""


def split(seed: int, outputs: Outputs, held_out: int, costs: torch.Tensor) -> Split:
    """Calibrate on some of the samples, drawn at random, and look at the others."""
    order = torch.randperm(len(outputs.labels), generator=torch.Generator().manual_seed(seed))
    fitting, testing, new = (rows(outputs, part) for part in order.tensor_split([held_out // 4, held_out]))
    temperatures = fit_temperatures(fitting)
    thresholds = candidates(surest(fitting, "confidence", temperatures))
    exits = exits_at(surest(testing, "confidence", temperatures), thresholds)
    new_exits = exits_at(surest(new, "confidence", temperatures), thresholds)
    losses = gap_losses(testing, exits)
    taken = {}
    for risk in RISKS:
        taken[f"delta, risk {risk:g}"] = last_safe(losses, risk, DELTA)
        taken[f"mean, risk {risk:g}"] = last_safe(losses, risk, None)
        # The threshold of least cost that kept the risk on the held-out samples: no promise for others.
        taken[f"as it was, risk {risk:g}"] = int((losses.mean(1) <= risk).int().cumprod(0).sum()) - 1
    p = new.logits.softmax(-1)
    truth, top = p.gather(-1, new.labels.expand(len(p), -1)[..., None]).squeeze(-1), p.amax(-1)
    covered = {}
    for together in (False, True):
        cutoffs = torch.tensor(fit_sets(rows(outputs, order[:held_out]), COVERAGE, together).cutoffs)[:, None]
        inside = (truth >= cutoffs) | (truth == top)
        covered["together" if together else "each"] = [
            *inside.double().mean(1).tolist(),
            inside.all(0).double().mean().item(),
        ]
    lost = gap_losses(new, new_exits).mean(1)
    return Split(costs[exits].mean(1), lost, costs[new_exits].mean(1), taken, covered)


def risk_control(splits: list[Split], whole: float) -> dict[str, dict[str, float]]:
    """For every risk: how often and how much it is exceeded, and the compute that is saved."""
    lost: dict[str, list[float]] = {}
    saved: dict[str, list[float]] = {}
    for each in splits:
        for name, taken in each.taken.items():
            lost.setdefault(name, []).append(each.lost[max(taken, 0)].item())
            saved.setdefault(name, []).append(1 - each.new_spent[max(taken, 0)].item() / whole)
    for risk in RISKS:  # plain thresholds for the budget that risk control spends on average
        budget, name = (1 - statistics.mean(saved[f"delta, risk {risk:g}"])) * whole, f"budget, risk {risk:g}"
        for each in splits:
            nearest = int((each.spent - budget).abs().argmin())
            lost.setdefault(name, []).append(each.lost[nearest].item())
            saved.setdefault(name, []).append(1 - each.new_spent[nearest].item() / whole)
    result = {}
    for name, values in lost.items():
        values, risk = sorted(values), float(name.rpartition(" ")[2])
        share = sum(value > risk for value in values) / len(values)
        result[name] = {"mean": statistics.mean(values), "exceeded": share, "saved": statistics.mean(saved[name])}
        result[name] |= {"low": values[len(values) // 40], "high": values[-1 - len(values) // 40]}
    return result


def coverage(splits: list[Split], outputs: Outputs, held_out: int) -> dict[str, dict[str, Any]]:
    """Mean coverage of the sets over the splits, and their sizes on the test images."""
    test, result = rows(outputs, torch.arange(held_out, len(outputs.labels))), {}
    for kind in ("each", "together"):
        *at_exits, at_once = (
            statistics.mean(column) for column in zip(*(s.covered[kind] for s in splits), strict=True)
        )
        sets = fit_sets(rows(outputs, torch.arange(held_out)), COVERAGE, kind == "together")
        sizes = [sets.of(logits, exit).sum(-1).double().mean().item() for exit, logits in enumerate(test.logits)]
        result[kind] = {"coverage": at_exits, "at_once": at_once, "size": sizes}
    return result


def combinations(outputs: Outputs, held_out: int) -> dict[str, dict[str, Any]]:
    """Test errors of the exits, and the share of samples that get worse on the way, for each rule."""
    validation = rows(outputs, torch.arange(held_out))
    test = rows(outputs, torch.arange(held_out, len(outputs.labels)))
    found = {"exits": test.logits}
    for name, options in COMBINATIONS.items():
        rule = (RULES | {"caching": Caching})[name.split(",")[0]](len(test.logits), **options)
        if name == "ensemble":
            rule.fit(validation)  # type: ignore[operator]
        answers = (rule(exit, [test.logits[i] for i in rule.heard(exit)]) for exit in range(len(test.logits)))
        found[name] = torch.stack(list(answers))
    return {
        name: {
            "errors": (logits.argmax(-1) != test.labels).double().mean(1).tolist(),
            "worse": share_getting_worse(logits, test.labels, FALL),
        }
        for name, logits in found.items()
    }


def main(runs: list[Path], folder: Path, count: int, jobs: int) -> None:
    torch.set_num_threads(1)  # processes that are forked after several threads have run would hang
    print(machine())
    for run in runs:
        outputs, held_out, costs = outputs_of(run, folder)
        print(
            f"\n{run.name}: {len(outputs.labels):,} images, {held_out:,} of them calibrate in each of {count:,} splits"
        )
        work = partial(split, outputs=outputs, held_out=held_out, costs=torch.tensor(costs, dtype=torch.float64))
        with ProcessPoolExecutor(jobs, get_context("fork")) as pool:
            splits = list(pool.map(work, range(count), chunksize=10))
        found = risk_control(splits, costs[-1])
        for name, facts in found.items():
            print(
                f"  {name:24} lost {facts['mean']:7.3%} on average, {facts['low']:.2%} to {facts['high']:.2%} in 95 % "
                f"of splits, too much in {facts['exceeded']:.1%} of them; {facts['saved']:.1%} of the MACs saved"
            )
        for risk in RISKS:
            verdict(f"{run.name}_exceeded_{risk:g}", found[f"delta, risk {risk:g}"]["exceeded"], DELTA)
            verdict(f"{run.name}_mean_{risk:g}", found[f"mean, risk {risk:g}"]["mean"], risk)
        covered = coverage(splits, outputs, held_out)
        for name, facts in covered.items():
            low, high = min(facts["coverage"]), max(facts["coverage"])
            print(
                f"  sets, {name}: coverage {low:.2%} to {high:.2%} at the exits, {facts['at_once']:.2%} at all at once"
            )
            print(f"    sizes {', '.join(f'{size:.2f}' for size in facts['size'])}")
        verdict(f"{run.name}_coverage", min(covered["each"]["coverage"]), COVERAGE - 0.001, least=True)
        verdict(f"{run.name}_coverage_at_once", covered["together"]["at_once"], COVERAGE - 0.001, least=True)
        combined = combinations(outputs, held_out)
        for name, facts in combined.items():
            errors = " ".join(f"{100 * error:.1f}" for error in facts["errors"])
            print(f"  {name:9} gets worse for {facts['worse']:.1%} of samples; errors {errors} %")
        more = combined["product"]["errors"][-1] - combined["exits"]["errors"][-1]
        verdict(f"{run.name}_product_loses", more, 0.003)
        RESULTS["facts"][run.name] = {
            "images": len(outputs.labels),
            "held_out": held_out,
            "splits": count,
            "costs": costs,
            "risk": found,
            "sets": covered,
            "combinations": combined,
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    main(options.runs, options.data, options.splits, options.jobs)
