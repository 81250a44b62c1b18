"""Schemes that show where AdaLoss's gain comes from; they are not part of the library.

``power:p=2`` and ``static-law`` vary how much weight is at the late exits. ``scaled-const`` keeps CONST's balance
between the exits and takes AdaLoss's step size: does the balance help, or only that the shared layers receive smaller
gradients? ``random-const`` is CONST as the paper's authors' scripts ran it.
"""

import importlib
import os
import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import anytime
from anytime import AdaLoss, Network
from anytime.errors import AnytimeError
from anytime.weights import AnnealedAdaLoss, Const
from experiments.famo import FAMO


class ScaledConst(Const):
    """CONST, scaled so that the gradient of the first layer is as large as AdaLoss would make it.

    Args:
        net: the network that is trained.
        every: the two gradients are compared on every such call; the scale is the moving average of their ratios.
        momentum: of that average.
    """

    scale: Tensor
    calls: Tensor

    def __init__(self, net: Network, every: int = 20, momentum: float = 0.9) -> None:
        super().__init__(net.exits)
        self.first_layer = [next(net.parameters())]  # in a list: the network's parameter, not one of this module
        self.every, self.momentum = every, momentum
        self.adaloss = AdaLoss(net.exits)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, losses: Tensor | Sequence[Tensor]) -> Tensor:
        """The scaled sum of the losses."""
        losses = self._vector(losses)
        balanced = self.adaloss(losses)
        if self.calls % self.every == 0 and losses.requires_grad:
            ratio = self._gradient(balanced) / self._gradient(losses.sum())
            momentum = self.momentum if self.calls else 0.0
            if ratio.isfinite():
                self.scale.lerp_(ratio, 1 - momentum)
                self.weights.fill_(self.scale)
        self.calls += 1
        return super().forward(losses)

    def _gradient(self, objective: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(objective, self.first_layer, retain_graph=True)
        return gradient.norm()


class RandomConst(Const):
    """CONST with half of the total weight added, in every step, to one exit drawn at random."""

    def forward(self, losses: Tensor | Sequence[Tensor]) -> Tensor:
        """The sum of the losses and of the one drawn."""
        self.weights.fill_(1.0)  # training seeds torch's generator in every step: a resumed run draws the same
        self.weights[torch.randint(self.exits, ())] += self.exits / 2
        return super().forward(losses)


class StaticLaw(Const):
    """Constant weights by AdaLoss's law, for losses that fall geometrically from 1 at the first exit to ``ratio``."""

    def __init__(self, exits: int, ratio: float = 0.01, gamma: float = 0.05) -> None:
        super().__init__(exits)
        losses = ratio ** torch.linspace(0, 1, exits, dtype=torch.float64)
        self.weights.copy_((1 - gamma) * losses[-1] / losses + gamma)


class UncertaintySO(AdaLoss):
    """UW-SO (arXiv 2408.07985): weights are the softmax of the inverse average losses, here divided by the largest."""

    def __init__(self, exits: int, temperature: float = 1.0) -> None:
        super().__init__(exits)
        self.temperature = temperature

    def _balanced(self) -> Tensor:
        weights = (1 / (self.average.nan_to_num(1.0).clamp(min=1e-6) * self.temperature)).softmax(0)
        return weights / weights.amax()


class MixedRegime(AnnealedAdaLoss):
    """The last exit alone for a share of the training, then AdaLoss with all (the mixed regime, arXiv 2407.14320)."""

    def __init__(self, exits: int, share: float = 0.5) -> None:
        super().__init__(exits)
        self.share = share

    def _balanced(self) -> Tensor:
        last = torch.zeros_like(self.average)
        last[-1] = 1.0
        return torch.where(self.calls < self.share * self.steps, last, super()._balanced())

    def _gamma(self) -> Tensor:
        return self.average.new_tensor(self.gamma)


def own_scheme(module: str, name: str, exits: int) -> nn.Module:
    """What a function or class of some module makes for so many exits; modules of the current folder are found last."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        made = vars(importlib.import_module(module))[name](exits)
    except ModuleNotFoundError as error:
        if error.name not in (module, module.partition(".")[0]):
            raise
        raise AnytimeError(f"{module}:{name}: there is no module {error.name}, neither installed nor here") from error
    except KeyError as error:
        raise AnytimeError(f"{module}:{name}: module {module} has no {name}") from error
    if not isinstance(made, nn.Module):
        raise AnytimeError(f"{module}:{name}({exits}) is a {type(made).__name__}; a scheme must be a torch.nn.Module")
    return made


def create_scheme(name: str, net: Network) -> nn.Module:
    """A scheme of the library, a control or one's own (``package.module:name``) by its name, where the network is."""
    controls = {"scaled-const": lambda: ScaledConst(net), "random-const": lambda: RandomConst(net.exits)}
    controls |= {"static-law": lambda: StaticLaw(net.exits), "famo": lambda: FAMO(net.exits)}
    controls |= {"uw-so": lambda: UncertaintySO(net.exits), "mixed": lambda: MixedRegime(net.exits)}
    controls |= {f"power:p={p:g}": lambda p=p: anytime.AdaLoss(net.exits, power=p) for p in (0.5, 2)}
    module, _, own = name.partition(":")
    if name in controls:
        scheme = controls[name]()
    elif own and "=" not in own:
        scheme = own_scheme(module, own, net.exits)
    else:
        scheme = anytime.create_scheme(name, net.exits)
    return scheme.to(next(net.parameters()).device)
