"""What the examples share: a network is trained with AdaLoss and again with CONST, and both curves are printed."""

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch

import anytime

SCHEMES = ("adaloss", "const")


def arguments(about: str, given: list[str] | None, epochs: int, samples: int) -> argparse.Namespace:
    """The options that every example has."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--samples", type=int, default=samples, help="to train on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    return parser.parse_args(given)


def compare(
    build: Callable[[], anytime.AnytimeNetwork],
    train: Any,
    test: Any,
    metrics: dict[str, Callable[..., torch.Tensor]],
    asked: argparse.Namespace,
    **options: Any,
) -> dict[str, dict[str, list[float]]]:
    """Train and print the curves; returns them by metric and scheme.

    Args:
        build: makes the network.
        train: batches to train on.
        test: batches that nothing is trained on.
        metrics: what is measured, by name.
        asked: what ``arguments`` returned.
        options: more for ``fit``: the loss, the recipe.
    """
    curves: dict[str, dict[str, list[float]]] = {name: {} for name in metrics}
    for scheme in SCHEMES:
        torch.manual_seed(asked.seed)
        net = build()
        anytime.fit(net, train, scheme, epochs=asked.epochs, seed=asked.seed, show=not asked.json, **options)
        for name, metric in metrics.items():
            curve = anytime.evaluate(net, test, metric=metric)
            curves[name][scheme] = curve.errors
    places = getattr(net, "places", [f"exit {exit + 1}" for exit in range(net.exits)])
    if asked.json:
        print(json.dumps({"places": places, "fractions": curve.costs.fractions, "curves": curves}))
        return curves
    for name, by_scheme in curves.items():
        print(f"\n{name}, on {curve.images:,} samples that were not trained on")
        print(f"{'exit after':32} {'cost':>6}" + "".join(f"{scheme:>10}" for scheme in SCHEMES))
        for exit, share in enumerate(curve.costs.fractions):
            row = "".join(f"{by_scheme[scheme][exit]:10.4g}" for scheme in SCHEMES)
            print(f"{places[exit]:32} {share:6.1%}{row}")
    return curves
