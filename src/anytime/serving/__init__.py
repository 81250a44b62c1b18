"""Serving under deadlines: requests share batches stage by stage, and load makes answers shallower, not later."""

from anytime.serving.cluster import ask, deployment
from anytime.serving.engine import Answer, Engine, EngineDiedError, OverloadedError
from anytime.serving.limits import Limits

__all__ = ["Answer", "Engine", "EngineDiedError", "Limits", "OverloadedError", "ask", "deployment"]
