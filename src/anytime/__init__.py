"""Anytime neural networks: a valid prediction early, a better one with every further moment."""

from anytime.checkpoint import load, save
from anytime.convert import ConvertedNetwork, convert
from anytime.cost import Costs, costs
from anytime.data import Data, Images, load_data
from anytime.ensemble import EANN
from anytime.errors import AnytimeError, MissingExtra, NonFiniteLoss
from anytime.evaluate import Curve, evaluate
from anytime.inflation import expected_inflation, inflation, sup_inflation
from anytime.latency import Profile, latency, profile
from anytime.models import BlockMSDNet, BottleneckResANN, DenseANN, MSDNet, ResANN, create_model, list_models
from anytime.models.pretrained import Filled, fill
from anytime.network import AnytimeNetwork, Step
from anytime.policy import Answers, Policy, calibrate
from anytime.recipe import Recipe
from anytime.runtime import Prediction, Run, Unfinished, astart, predict, start
from anytime.team import Team
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
    "EANN",
    "AdaLoss",
    "Answers",
    "AnytimeError",
    "AnytimeNetwork",
    "BlockMSDNet",
    "BottleneckResANN",
    "Const",
    "ConvertedNetwork",
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
    "Policy",
    "Prediction",
    "Profile",
    "Recipe",
    "ResANN",
    "Run",
    "Step",
    "Team",
    "Unfinished",
    "WeightScheme",
    "astart",
    "calibrate",
    "convert",
    "costs",
    "create_model",
    "create_scheme",
    "evaluate",
    "expected_inflation",
    "fill",
    "fit",
    "inflation",
    "latency",
    "list_models",
    "load",
    "load_data",
    "predict",
    "profile",
    "save",
    "start",
    "sup_inflation",
]
