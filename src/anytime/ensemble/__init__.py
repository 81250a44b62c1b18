"""Ensembles of anytime networks of growing cost (EANN), and the theory of what they cost."""

from anytime.ensemble.eann import EANN
from anytime.ensemble.team import Team
from anytime.ensemble.theory import expected_inflation, inflation, schedule, simulate_inflation, sup_inflation

__all__ = ["EANN", "Team", "expected_inflation", "inflation", "schedule", "simulate_inflation", "sup_inflation"]
