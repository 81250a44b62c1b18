"""What the extras, and heads with a hidden layer, add to the time of a training step with AdaLoss.

python benchmarks/extras.py                      # resann-5-8-patch2, batch 60: the reproduction's network on SVHN
python benchmarks/extras.py resann-9-16 64 15
"""

import sys
from contextlib import ExitStack
from pathlib import Path

import torch
from ratio import interleaved, machine, report, verdict

import anytime
from anytime.losses import by_exit, cross_entropy
from anytime.memory import keep_freed_memory
from anytime.weights.first_order import watching

sys.path.append(str(Path(__file__).parents[1]))  # the project's root, where experiments/ is
from experiments.controls import create_scheme
from experiments.distillation import distilled
from experiments.equilibrium import equilibrium

LIMIT = 1.10


def trainer(name: str, x: torch.Tensor, y: torch.Tensor, extra: str, hooks: ExitStack):
    net = anytime.create_model(name + "-mlpheads" * (extra == "mlpheads")).train()
    if extra == "boosting":
        net = anytime.combine(net, "boosting")
    schemes = {"first-order": "first-order", "famo": "famo", "annealed": "annealed:steps=100000"}
    scheme = create_scheme(schemes.get(extra, "adaloss"), net)
    hooks.enter_context(watching(scheme, net))
    if extra == "equilibrium":
        hooks.enter_context(equilibrium(net))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)

    def step() -> None:
        outputs = net(x)
        losses = by_exit(cross_entropy, outputs, y).mean(1)
        if extra == "distillation":
            losses = distilled(torch.stack(outputs), losses, 0.5)
        optimizer.zero_grad()
        scheme(losses).backward()
        optimizer.step()

    return step


def main(name: str, batch: int, repeats: int) -> None:
    keep_freed_memory()
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    print(f"{name}, batch {batch}, {machine()}")
    for extra in ("equilibrium", "distillation", "boosting", "annealed", "first-order", "famo", "mlpheads"):
        with ExitStack() as hooks:
            pairs = interleaved(trainer(name, x, y, extra, hooks), trainer(name, x, y, "", hooks), repeats)
        ratios = [a / b for a, b in pairs]
        verdict(f"extras_{extra}", report(f"time of a step, {extra} / AdaLoss alone", ratios), LIMIT)


if __name__ == "__main__":
    name, batch, repeats = [*sys.argv[1:], *("resann-5-8-patch2", "60", "15")[len(sys.argv) - 1 :]]
    main(name, int(batch), int(repeats))
