"""Tables of docs/pretrained.md, from the records of benchmarks/pretrained.py."""

from statistics import mean

from measuring import results

SEEDS, EXITS = 3, 5
KINDS = {"eager": "PyTorch", "onnx": "ONNX Runtime"}
Facts = dict[str, float]


def facts() -> Facts:
    """Errors, shares and milliseconds."""
    return results("pretrained_errors")["facts"] | results("pretrained_times")["facts"]


def seeds(found: Facts, template: str) -> list[float]:
    """A number of each seed."""
    return [found[template.format(seed=seed)] for seed in range(SEEDS)]


def percent(values: list[float]) -> str:
    """The mean in %, and between which values those of the seeds lie."""
    low, middle, high = (f"{100 * value:.1f}" for value in (min(values), mean(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def exit_table() -> str:
    """Errors of each exit."""
    found = facts()
    lines = ["| | " + " | ".join(f"exit {exit}" for exit in range(1, EXITS + 1)) + " |", "|---|" + "---:|" * EXITS]
    for net in range(3):
        name = f"lite{net}"
        cells = [percent(seeds(found, f"{name}_seed{{seed}}_error_{exit}")) for exit in range(1, EXITS + 1)]
        lines.append(f"| Lite{net}, error in % | {' | '.join(cells)} |")
        for kind, label in KINDS.items():
            cells = [f"{found[f'{name}_{kind}_ms_{exit}']:.1f}" for exit in range(1, EXITS + 1)]
            lines.append(f"| milliseconds, {label} | {' | '.join(cells)} |")
    return "\n" + "\n".join(lines) + "\n"


def policy_ms(found: Facts, kind: str, seed: int) -> float:
    """The mean milliseconds of a photo under the policy."""
    shares = (found[f"policy_seed{seed}_share_{exit}"] for exit in range(1, EXITS + 1))
    spent = (found[f"lite0_{kind}_leaving_ms_{exit}"] for exit in range(1, EXITS + 1))
    return sum(share * ms for share, ms in zip(shares, spent, strict=True))


def policy() -> str:
    """What the policy saves."""
    found = facts()
    wrong, whole = percent(seeds(found, "policy_seed{seed}_error")), percent(seeds(found, "lite0_seed{seed}_error_5"))
    saved = []
    for kind, label in KINDS.items():
        spent, full = mean(policy_ms(found, kind, seed) for seed in range(SEEDS)), found[f"plain0_{kind}_ms"]
        saved.append(f"{spent:.1f} ms instead of {full:.1f} with {label}")
    return f"{wrong} % error instead of {whole} %, {' and '.join(saved)}"


def eann_seeds(found: Facts) -> list[int]:
    """The seeds of which an ensemble was measured."""
    return [seed for seed in range(SEEDS) if f"eann_seed{seed}_error_1" in found]


def eann(found: Facts, kind: str, seed: int) -> tuple[list[float], list[float]]:
    """Milliseconds and errors in % of the exits that an ensemble offers, whose networks run one after another."""
    count = sum(name.startswith(f"eann_seed{seed}_error_") for name in found)
    offered = [
        (int(found[f"eann_seed{seed}_member_{exit}"]), int(found[f"eann_seed{seed}_inner_{exit}"]))
        for exit in range(1, count + 1)
    ]
    before, ms = 0.0, []
    for (member, inner), (following, _) in zip(offered, [*offered[1:], offered[-1]], strict=True):
        ms.append(before + found[f"lite{member}_{kind}_ms_{inner}"])
        before = ms[-1] if following != member else before
    return ms, [100 * found[f"eann_seed{seed}_error_{exit}"] for exit in range(1, count + 1)]


def minutes() -> str:
    """Of the network that took longest to train, the fastest training: others ran beside other programs."""
    found = results("pretrained_errors")["facts"]
    return f"{max(min(seeds(found, f'lite{net}_seed{{seed}}_fit_seconds')) for net in range(3)) / 60:.1f}"


TABLES = {"pretrained_exits": exit_table, "pretrained_policy": policy, "pretrained_minutes": minutes}
