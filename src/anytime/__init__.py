"""Anytime neural networks: a valid prediction early, a better one the longer they run."""

from anytime import export as export
from anytime.combination.combined import combine
from anytime.conversion.convert import convert
from anytime.conversion.converted import ConvertedNetwork
from anytime.cost import Costs, costs
from anytime.data.dataset import Data
from anytime.data.images import Images
from anytime.data.loading import load_data
from anytime.ensemble.eann import EANN
from anytime.ensemble.team import Team
from anytime.errors import AnytimeError, MissingExtraError, NonFiniteLossError
from anytime.evaluation import Curve, evaluate
from anytime.export.exported import load_exported
from anytime.inference.background import astart, start
from anytime.inference.calibration import calibrate
from anytime.inference.latency import Profile, profile
from anytime.inference.policy import Policy
from anytime.inference.prediction import Prediction, UnfinishedError, predict
from anytime.inference.real_time import realtime
from anytime.models import create_model, list_models
from anytime.models.pretrained import load_pretrained
from anytime.network import AnytimeNetwork, Network, Step
from anytime.preprocessing import Preprocessing
from anytime.saving import load, save
from anytime.selection import select_exits
from anytime.serving.engine import Engine, OverloadedError
from anytime.serving.start import serve
from anytime.training.fit import FitResult, fit
from anytime.training.recipe import Recipe
from anytime.weights import AdaLoss, create_scheme

__all__ = [
    "EANN",
    "AdaLoss",
    "AnytimeError",
    "AnytimeNetwork",
    "ConvertedNetwork",
    "Costs",
    "Curve",
    "Data",
    "Engine",
    "FitResult",
    "Images",
    "MissingExtraError",
    "Network",
    "NonFiniteLossError",
    "OverloadedError",
    "Policy",
    "Prediction",
    "Preprocessing",
    "Profile",
    "Recipe",
    "Step",
    "Team",
    "UnfinishedError",
    "astart",
    "calibrate",
    "combine",
    "convert",
    "costs",
    "create_model",
    "create_scheme",
    "evaluate",
    "fit",
    "list_models",
    "load",
    "load_data",
    "load_exported",
    "load_pretrained",
    "predict",
    "profile",
    "realtime",
    "save",
    "select_exits",
    "serve",
    "start",
]

__version__ = "0.1.0"
