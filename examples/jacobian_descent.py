"""Jacobian descent: let TorchJD balance the exits instead of a weight scheme.

A weight scheme sees the losses and returns their weighted sum. Jacobian descent (Quinton & Rey 2024) sees the gradient
of every loss and makes of them one direction that does not increase any of them, here by UPGrad. It costs a backward
pass per exit instead of one.

    pip install "anytime-nets[examples]"
    python examples/jacobian_descent.py                # digits, a few epochs, beside AdaLoss
    python examples/jacobian_descent.py --epochs 10
"""

import argparse
import sys

import torch
from torch.nn.functional import cross_entropy

import anytime
from anytime.errors import require


def train(net: anytime.AnytimeNetwork, data: anytime.Data, epochs: int, lr: float) -> None:
    """Train all exits with UPGrad."""
    autojac, aggregation = require("torchjd.autojac", "examples"), require("torchjd.aggregation", "examples")
    aggregator = aggregation.UPGrad()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, epochs)
    pixels, labels = data.train.pixels, data.train.labels  # type: ignore[union-attr]
    net.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(32):
            losses = [cross_entropy(logits, labels[batch]) for logits in net(data.normalize(pixels[batch]))]
            optimizer.zero_grad()
            autojac.backward(losses)
            autojac.jac_to_grad(net.parameters(), aggregator)
            optimizer.step()
        schedule.step()


def main() -> None:
    """Train with UPGrad and with AdaLoss, and print both curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--subset", type=int, help="train on so many images only")
    options = parser.parse_args()
    data = anytime.load_data("digits")
    data = data if options.subset is None else data.subset(options.subset)
    for name in ("UPGrad", "AdaLoss"):
        torch.manual_seed(0)
        net = anytime.create_model("resann-2-8", in_channels=1)
        if name == "UPGrad":
            train(net, data, options.epochs, lr=0.1)
        else:
            anytime.fit(net, data, "adaloss", epochs=options.epochs, lr=0.1, schedule="linear", show=False)
        errors = " ".join(f"{error:5.1%}" for error in anytime.evaluate(net, data).errors if error is not None)
        print(f"{name:8} test error, exit by exit: {errors}")


if __name__ == "__main__":
    try:
        main()
    except anytime.AnytimeError as error:
        sys.exit(str(error))
