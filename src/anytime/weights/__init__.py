"""Weight schemes: from the losses of all exits to the one number that training minimizes.

A scheme is a module that is called with the losses, shallow to deep (a tensor of shape ``[L]``, or a list of L scalar
losses), and returns a scalar. All of its state is in buffers and parameters, so ``state_dict`` holds it. ``.weights``
holds the weights of the most recent call. A scheme knows nothing about networks, data or optimizers; any callable from
a loss vector to a scalar can be used in its place.
"""

from anytime.weights.adaloss import AdaLoss
from anytime.weights.annealed import AnnealedAdaLoss
from anytime.weights.create import create_scheme
from anytime.weights.first_order import FirstOrderAdaLoss
from anytime.weights.fixed import Const, HalfEnd, LinearWeights, OnlyExit
from anytime.weights.geometric_mean import GeometricMean
from anytime.weights.log_barrier import LogBarrier
from anytime.weights.scheme import AdaptiveScheme, WeightScheme
from anytime.weights.tasks import TaskWeights

__all__ = [
    "AdaLoss",
    "AdaptiveScheme",
    "AnnealedAdaLoss",
    "Const",
    "FirstOrderAdaLoss",
    "GeometricMean",
    "HalfEnd",
    "LinearWeights",
    "LogBarrier",
    "OnlyExit",
    "TaskWeights",
    "WeightScheme",
    "create_scheme",
]
