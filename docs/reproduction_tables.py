"""Numbers and tables from the reproduction's report."""

import re
from collections.abc import Callable
from pathlib import Path

REPORT = Path(__file__).parent / "REPRODUCTION.md"
RESANN = "svhn (resann-5-8-patch2, 3 seeds) in %"
TEN_SEEDS = "svhn (resann-5-8-patch2, 10 seeds) in %"
OVER_OPT = "svhn (resann-5-8-patch2, 10 seeds), in %"
MSDNET = "svhn (msdnet-cifar-4-2-1-patch2) in %"
CIFAR = "cifar10 (resann-5-8-patch2, 3 seeds) in %"
CIFAR_OVER_OPT = "cifar10 (resann-5-8-patch2, 3 seeds), in %"
"""What the headings of the tables of training extras say."""
HEADS = {data: f"{data} (resann-5-8-patch2, heads, 3 seeds)" for data in ("svhn", "cifar10")}
"""What the headings of the tables of heads begin with."""
NETWORKS = {
    "svhn": "SVHN, `resann-5-8-patch2`",
    "cifar10 (narrow)": "CIFAR-10, `resann-5-8-patch2`",
    "cifar10": "CIFAR-10, `resann-5-16-patch2`",
    "cifar10 (both)": "CIFAR-10, both networks",
    "cifar100": "CIFAR-100, `resann-5-16-patch2`",
}
"""What the report calls them, and the README."""
BEST = "annealed AdaLoss, boosted exits"
TOGETHER = "annealed AdaLoss, boosted exits, ensemble"
STACKED = "annealed AdaLoss, boosted exits, stacked"
MLP_STACKED = "AdaLoss, stacked, MLP heads"
EXTRAS = {
    "opt": "OPT",
    "extra_const": "CONST",
    "extra_adaloss": "AdaLoss",
    "annealed": "annealed AdaLoss",
    "boosting": "AdaLoss, boosted exits",
    "annealed_boosting": BEST,
    "annealed_boosting_ensemble": TOGETHER,
    "annealed_boosting_stacked": STACKED,
    "const_boosting": "CONST, boosted exits",
    "distill": "AdaLoss, distillation",
    "const_distill": "CONST, distillation",
    "equilibrium": "AdaLoss, equilibrium",
    "first_order": "first-order AdaLoss",
    "famo": "FAMO",
}
"""Rows of the table of training extras, by the names of their figures."""


def against(data: str, rival: str) -> str:
    """How AdaLoss's error at the last exit compares with another scheme's."""
    *_, cell, n = table("Paired differences: ")[f"{data}, {rival} − AdaLoss"]
    mean, low, high = (float(number.replace("−", "-")) for number in re.findall(r"[−\d.]+", cell))
    side, (low, high) = ("below", (low, high)) if mean >= 0 else ("above", (-high, -low))
    ends = f"{low:.2f} to {high:.2f}".replace("-", "−")
    return f"{abs(mean):.2f} points {side} {rival}'s (95 % interval {ends}, n = {n})"


def table(heading: str) -> dict[str, list[str]]:
    """The cells of the first table after these words, by the label in front of them."""
    found = REPORT.read_text(encoding="utf-8").partition(heading)[2].split("\n\n")[1]
    rows = [row.strip("| ").split(" | ") for row in found.splitlines()[2:]]
    return {label: cells for label, *cells in rows}


def evidence() -> str:
    """AdaLoss and its rivals at the last exit of all networks, with the difference to CONST."""
    errors, paired = table("Test error in % at fractions"), table("Paired differences: ")
    rows = []
    for label, name in NETWORKS.items():
        *_, late, last, n = paired[f"{label}, CONST − AdaLoss"]
        each = [errors.get(f"{label}, {scheme}") for scheme in ("CONST", "LINEAR", "AdaLoss")]
        means = ["–" if cells is None else cells[3] + f" (n = {cells[-1]})" * (cells[-1] != n) for cells in each]
        rows.append([name, *means, late, last, f"2 × {n}" if label == "cifar10 (both)" else n])
    header = ["", "CONST", "LINEAR", "AdaLoss", "CONST − AdaLoss at 3/4 of the cost", "at the last exit", "n"]
    lines = [header, ["---"] + ["---:"] * 6, *rows]
    return "\n".join(["", *(f"| {' | '.join(line)} |" for line in lines), ""])


def extras(heading: str) -> dict[str, list[str]]:
    """A table of training extras: by label the means at the fractions of the cost."""
    return {label: cells[:-1] for label, cells in _means(heading).items()}


def _means(heading: str) -> dict[str, list[str]]:
    return {label: [cell.split(" ")[0] for cell in cells] for label, cells in table(f"on {heading}").items()}


def extras_table(heading: str) -> str:
    """All rows of a table of training extras, with the number of seeds."""
    rows = [f"| {label} | {' | '.join(cells)} |" for label, cells in _means(heading).items()]
    return "\n".join(["", "| training | 1/4 | 1/2 | 3/4 | 1 | n |", "|---|---:|---:|---:|---:|---:|", *rows, ""])


def eann_table() -> str:
    """Means of the ensembles and of what they are compared with, at shares of the cost."""
    shares = ["10%", "20%", "30%", "40%", "50%", "60%", "80%", "100%"]
    rows = [
        f"| {label} | {' | '.join(cell.split(' ')[0] for cell in cells[: len(shares)])} |"
        for label, cells in table("of the most expensive ensemble").items()
    ]
    return "\n".join(["", f"| | {' | '.join(shares)} |", f"|---|{'---:|' * len(shares)}", *rows, ""])


def counts() -> str:
    """How many claims have which verdict."""
    found = re.search(r"setting by setting: (.*?)\. ", REPORT.read_text(encoding="utf-8"))
    assert found
    return found[1]


def separated(rival: str) -> str:
    """In how many settings AdaLoss is better or worse than a rival."""
    found = re.search(rf"AdaLoss against {rival} at the last exit, (.*?)\.\n", REPORT.read_text(encoding="utf-8"))
    assert found
    return found[1]


def together(kind: str) -> str:
    """What an ensemble of all exits adds at the last exit, over the settings with these heads or this training."""
    rows = table("Points of test error that each rule takes away")
    picked = {label: cells[1] for label, cells in rows.items() if kinds(label) == kind and int(cells[-1]) > 1}
    means = [float(cell.split(" ")[0].replace("−", "-")) for cell in picked.values()]
    low, high = (f"{end:.2f}".replace("-", "−") for end in (min(means), max(means)))
    return f"{low} to {high} (largest: {max(picked.values(), key=lambda cell: float(cell.split(' ')[0].replace('−', '-')))})"


def kinds(label: str) -> str:
    """Of a row: with MLP heads, with boosted exits and the paper's heads, or the paper's heads alone."""
    return "mlp" if "-mlpheads" in label else "boosted" if "boosted" in label else "plain"


TABLES: dict[str, Callable[[], str]] = {
    "cifar10_both_linear": lambda: against("cifar10 (both)", "LINEAR"),
    "cifar10_both_linear_early": lambda: table("Paired differences: ")["cifar10 (both), LINEAR − AdaLoss"][0],
    "cifar10_both_linear_late": lambda: table("Paired differences: ")["cifar10 (both), LINEAR − AdaLoss"][2],
    "claims": counts,
    **{f"separation_{rival.lower()}": lambda rival=rival: separated(rival) for rival in ("CONST", "LINEAR")},
    **{f"ensemble_{kind}": lambda kind=kind: together(kind) for kind in ("plain", "boosted", "mlp")},
    "svhn_linear": lambda: against("svhn", "LINEAR"),
    "evidence": evidence,
    "cifar100_const": lambda: against("cifar100", "CONST"),
    **{f"svhn_{name}": lambda label=label: " | ".join(extras(RESANN)[label]) for name, label in EXTRAS.items()},
    "svhn_10_adaloss": lambda: ", ".join(extras(TEN_SEEDS)["AdaLoss"]),
    "svhn_10_const": lambda: ", ".join(extras(TEN_SEEDS)["CONST"]),
    "svhn_10_best": lambda: ", ".join(extras(TEN_SEEDS)[BEST]),
    "svhn_10_best_over_opt": lambda: ", ".join(extras(OVER_OPT)[BEST]),
    "svhn_10_stacked": lambda: ", ".join(extras(TEN_SEEDS)[STACKED]),
    "svhn_10_stacked_over_opt": lambda: ", ".join(extras(OVER_OPT)[STACKED]),
    "svhn_10_together": lambda: ", ".join(extras(TEN_SEEDS)[TOGETHER]),
    "svhn_10_together_over_opt": lambda: ", ".join(extras(OVER_OPT)[TOGETHER]),
    "eann": eann_table,
    "cifar10_stacked_over_opt": lambda: ", ".join(extras(CIFAR_OVER_OPT)["AdaLoss, stacked"]),
    "cifar10_best_over_opt": lambda: ", ".join(extras(CIFAR_OVER_OPT)[STACKED]),
    **{f"{data}_heads": lambda where=where: extras_table(f"{where} in %") for data, where in HEADS.items()},
    "cifar10_wide_heads": lambda: extras_table("cifar10 (resann-5-16-patch2, heads, 3 seeds) in %"),
    **{
        f"{data}_heads_over_{opt}": lambda where=where, words=words: ", ".join(extras(where + words)[MLP_STACKED])
        for data, where in HEADS.items()
        for opt, words in (("opt", ", in %"), ("mlp_opt", ", with MLP heads too, in %"))
    },
    "msdnet_extras": lambda: extras_table(MSDNET),
    "cifar10_extras": lambda: extras_table(CIFAR),
}
