"""What risk control, conformal sets and combined exits promise, on many random splits of trained networks' outputs.

python benchmarks/guarantees.py --data DIR RUN [RUN …] [--splits 1000] [--json]

RUN is the folder of a trained network, DIR holds the data sets as for ``python -m experiments``. The outputs on all
validation and test images are computed once and kept in runs/outputs. In each split as many of them as there are
validation images, drawn at random, calibrate; the others tell what comes of it.
"""

import argparse
import statistics
from pathlib import Path

import torch
from ratio import RESULTS, machine, verdict
from safetensors.torch import load_file, save_file

import anytime
from anytime.combination.network import RULES
from anytime.combination.product import share_getting_worse
from anytime.evaluation import Outputs, collect
from anytime.files import read_json
from anytime.inference.conformal import fit_sets
from anytime.inference.risk import candidates, exits_at, gap_losses, last_safe, surest
from anytime.inference.temperature import fit_temperatures
from experiments.runner import find_data

RISKS = (0.005, 0.01, 0.02)
DELTA = 0.05
COVERAGE = 0.95
FALL = 0.1
KEPT = Path("runs", "outputs")


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


def risk_control(outputs: Outputs, held_out: int, costs: torch.Tensor, splits: int) -> dict[str, dict[str, float]]:
    """For every risk: how often and how much it is exceeded, and the compute that is saved."""
    lost: dict[str, list[float]] = {}
    saved: dict[str, list[float]] = {}
    spent, test_lost = [], []
    generator = torch.Generator().manual_seed(0)
    for _ in range(splits):
        order = torch.randperm(len(outputs.labels), generator=generator)
        fitting, testing, new = (rows(outputs, part) for part in order.tensor_split([held_out // 4, held_out]))
        temperatures = fit_temperatures(fitting)
        thresholds = candidates(surest(fitting, "confidence", temperatures))
        exits = exits_at(surest(testing, "confidence", temperatures), thresholds)
        new_exits = exits_at(surest(new, "confidence", temperatures), thresholds)
        losses, new_lost = gap_losses(testing, exits), gap_losses(new, new_exits).mean(1)
        new_spent = costs[new_exits].mean(1)
        spent.append(costs[exits].mean(1))
        test_lost.append(new_lost)
        for risk in RISKS:
            for name, taken in {
                f"delta, risk {risk:g}": last_safe(losses, risk, DELTA),
                f"mean, risk {risk:g}": last_safe(losses, risk, None),
                # The threshold of least cost that kept the risk on the held-out samples: no promise for others.
                f"as it was, risk {risk:g}": int((losses.mean(1) <= risk).int().cumprod(0).sum()) - 1,
            }.items():
                lost.setdefault(name, []).append(new_lost[max(taken, 0)].item())
                saved.setdefault(name, []).append(1 - (new_spent[max(taken, 0)] / costs[-1]).item())
    for risk in RISKS:  # plain thresholds for the budget that risk control spends on average
        budget = (1 - statistics.mean(saved[f"delta, risk {risk:g}"])) * costs[-1]
        name = f"budget, risk {risk:g}"
        for each_spent, each_lost in zip(spent, test_lost, strict=True):
            taken = int((each_spent - budget).abs().argmin())
            lost.setdefault(name, []).append(each_lost[taken].item())
            saved.setdefault(name, []).append(1 - (each_spent[taken] / costs[-1]).item())
    result = {}
    for name, values in lost.items():
        risk = float(name.rpartition(" ")[2])
        share = sum(value > risk for value in values) / splits
        result[name] = {"mean": statistics.mean(values), "exceeded": share, "saved": statistics.mean(saved[name])}
        result[name] |= {"low": sorted(values)[splits // 40], "high": sorted(values)[-1 - splits // 40]}
    return result


def coverage(outputs: Outputs, held_out: int, splits: int) -> dict[str, dict[str, list[float] | float]]:
    """Mean coverage and size of the sets at every exit."""
    p = outputs.logits.double().softmax(-1)
    truth = p.gather(-1, outputs.labels.expand(len(p), -1)[..., None]).squeeze(-1)
    top = p.amax(-1)
    result: dict[str, dict[str, list[float] | float]] = {}
    for together in (False, True):
        inside, at_once = [], []
        generator = torch.Generator().manual_seed(1)
        for _ in range(splits):
            order = torch.randperm(len(outputs.labels), generator=generator)
            cutoffs = torch.tensor(fit_sets(rows(outputs, order[:held_out]), COVERAGE, together).cutoffs)[:, None]
            new = order[held_out:]
            hit = (truth[:, new] >= cutoffs) | (truth[:, new] == top[:, new])
            inside.append(hit.double().mean(1))
            at_once.append(hit.all(0).double().mean().item())
        sets = (p[:, new] >= cutoffs[..., None]) | (p[:, new] == top[:, new, None])
        result["together" if together else "each"] = {
            "coverage": torch.stack(inside).mean(0).tolist(),
            "at_once": statistics.mean(at_once),
            "size": sets.sum(-1).double().mean(1).tolist(),  # of the last split
        }
    return result


def combinations(outputs: Outputs, held_out: int) -> dict[str, dict[str, float | list[float]]]:
    """Test errors of the exits, and the share of samples that get worse on the way, for each rule."""
    validation = rows(outputs, torch.arange(held_out))
    test = rows(outputs, torch.arange(held_out, len(outputs.labels)))
    found = {"exits": test.logits}
    for name in ("ensemble", "product", "caching"):
        rule, memory, answers = RULES[name](len(test.logits)), None, []  # type: ignore[call-arg]
        if name == "ensemble":
            rule.fit(validation)  # type: ignore[operator]
        for exit, logits in enumerate(test.logits):
            answer, memory = rule(exit, logits, memory)
            answers.append(answer)
        found[name] = torch.stack(answers)
    return {
        name: {
            "errors": (logits.argmax(-1) != test.labels).double().mean(1).tolist(),
            "worse": share_getting_worse(logits, test.labels, FALL),
        }
        for name, logits in found.items()
    }


def main(runs: list[Path], folder: Path, splits: int) -> None:
    print(machine())
    for run in runs:
        outputs, held_out, costs = outputs_of(run, folder)
        print(
            f"\n{run.name}: {len(outputs.labels):,} images, {held_out:,} of them calibrate in each of {splits:,} splits"
        )
        found = risk_control(outputs, held_out, torch.tensor(costs, dtype=torch.float64), splits)
        for name, facts in found.items():
            print(
                f"  {name:24} lost {facts['mean']:7.3%} on average, {facts['low']:.2%} to {facts['high']:.2%} in 95 % "
                f"of splits, too much in {facts['exceeded']:.1%} of them; {facts['saved']:.1%} of the MACs saved"
            )
        for risk in RISKS:
            verdict(f"{run.name}_exceeded_{risk:g}", found[f"delta, risk {risk:g}"]["exceeded"], DELTA)
            verdict(f"{run.name}_mean_{risk:g}", found[f"mean, risk {risk:g}"]["mean"], risk)
        covered = coverage(outputs, held_out, splits)
        for name, facts in covered.items():
            print(
                f"  sets, {name}: coverage {min(facts['coverage']):.2%} to {max(facts['coverage']):.2%} at the exits, "  # type: ignore[arg-type]
                f"{facts['at_once']:.2%} at all; sizes {', '.join(f'{size:.2f}' for size in facts['size'])}"
            )  # type: ignore[union-attr]
        verdict(f"{run.name}_coverage", min(covered["each"]["coverage"]), COVERAGE - 0.001, least=True)  # type: ignore[arg-type]
        verdict(f"{run.name}_coverage_at_once", covered["together"]["at_once"], COVERAGE - 0.001, least=True)  # type: ignore[arg-type]
        combined = combinations(outputs, held_out)
        for name, facts in combined.items():
            errors = " ".join(f"{100 * error:.1f}" for error in facts["errors"])  # type: ignore[union-attr]
            print(f"  {name:9} gets worse for {facts['worse']:.1%} of samples; errors {errors} %")
        verdict(
            f"{run.name}_product_loses",
            combined["product"]["errors"][-1] - combined["exits"]["errors"][-1],  # type: ignore[index, operator]
            0.003,
        )
        RESULTS["facts"][run.name] = {
            "images": len(outputs.labels),
            "held_out": held_out,
            "splits": splits,
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
    options = parser.parse_args()
    main(options.runs, options.data, options.splits)
