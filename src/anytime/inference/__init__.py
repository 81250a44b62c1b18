"""Inference: predictions under limits, in the background, and with early exit per sample."""

from anytime.inference.background import BackgroundPrediction, astart, start
from anytime.inference.batch_times import BatchTimes, measure_batches
from anytime.inference.calibration import calibrate
from anytime.inference.conformal import ConformalSets, conformal_sets
from anytime.inference.latency import Profile, profile
from anytime.inference.monitoring import Monitor, Report
from anytime.inference.policy import HeldOut, Policy
from anytime.inference.prediction import Prediction, UnfinishedError, predict
from anytime.inference.real_time import realtime
from anytime.inference.risk import control_risk

__all__ = [
    "BackgroundPrediction",
    "BatchTimes",
    "ConformalSets",
    "HeldOut",
    "Monitor",
    "Policy",
    "Prediction",
    "Profile",
    "Report",
    "UnfinishedError",
    "astart",
    "calibrate",
    "conformal_sets",
    "control_risk",
    "measure_batches",
    "predict",
    "profile",
    "realtime",
    "start",
]
