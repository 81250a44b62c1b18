"""The exit tax: a training step with all exits against one of the same backbone with its last exit alone.

python benchmarks/exit_tax.py                    # resann-9-16, limit 1.15
python benchmarks/exit_tax.py resann-7-32 1.08
"""

import sys

import torch
from ratio import interleaved, machine, report, verdict

import anytime
from anytime.losses import by_exit, cross_entropy
from anytime.memory import keep_freed_memory


def trainer(net: anytime.Network, x: torch.Tensor, y: torch.Tensor):
    scheme = anytime.AdaLoss(net.exits)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)

    def step() -> None:
        losses = by_exit(cross_entropy, net(x), y).mean(1)
        optimizer.zero_grad()
        scheme(losses).backward()
        optimizer.step()

    return step


def main(name: str, limit: float, repeats: int) -> None:
    keep_freed_memory()
    net = anytime.create_model(name)
    units = int(name.split("-")[1]) * 3
    plain = anytime.create_model(name, exits=[units])
    x, y = torch.randn(128, 3, 32, 32), torch.randint(10, (128,))
    share = anytime.costs(net, x[:1]).macs[-1] / anytime.costs(plain, x[:1]).macs[-1]
    print(f"{name}, batch 128, {machine()}; {net.exits} exits against 1; their share of the MACs: {share:.4f}")
    pairs = interleaved(trainer(net, x, y), trainer(plain, x, y), repeats)
    print(f"plain: {128 / min(p for _, p in pairs):.0f} images/s at best")
    verdict("exit_tax", report("time of a step, all exits / last exit", [a / b for a, b in pairs]), limit)


if __name__ == "__main__":
    name, limit, repeats = [*sys.argv[1:], *("resann-9-16", "1.15", "25")[len(sys.argv) - 1 :]]
    main(name, float(limit), int(repeats))
