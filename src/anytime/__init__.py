"""Anytime neural networks: a valid prediction early, a better one with every further moment."""

from anytime.checkpoint import load, save
from anytime.cost import Costs, costs, latency
from anytime.data import Data, Images, load_data
from anytime.errors import AnytimeError, MissingExtra, NonFiniteLoss
from anytime.evaluate import Curve, evaluate
from anytime.models import BlockMSDNet, BottleneckResANN, DenseANN, MSDNet, ResANN, create_model, list_models
from anytime.models.pretrained import Filled, fill
from anytime.network import AnytimeNetwork, Step
from anytime.recipe import Recipe
from anytime.train import Fit, fit
from anytime.weights import (
    AdaLoss,
    Const,
    GeometricMean,
    HalfEnd,
    Linear,
    LogBarrier,
    OnlyExit,
    WeightScheme,
    create_scheme,
)

__all__ = [
    "AdaLoss",
    "AnytimeError",
    "AnytimeNetwork",
    "BlockMSDNet",
    "BottleneckResANN",
    "Const",
    "Costs",
    "Curve",
    "Data",
    "DenseANN",
    "Filled",
    "Fit",
    "GeometricMean",
    "HalfEnd",
    "Images",
    "Linear",
    "LogBarrier",
    "MSDNet",
    "MissingExtra",
    "NonFiniteLoss",
    "OnlyExit",
    "Recipe",
    "ResANN",
    "Step",
    "WeightScheme",
    "costs",
    "create_model",
    "create_scheme",
    "evaluate",
    "fill",
    "fit",
    "latency",
    "list_models",
    "load",
    "load_data",
    "save",
]
