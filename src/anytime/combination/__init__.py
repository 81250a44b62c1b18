"""Combinations: every exit answers with what all exits so far say together."""

from anytime.combination.boosting import Boosting
from anytime.combination.combined import CombinedNetwork, combine
from anytime.combination.ensemble import Ensemble
from anytime.combination.product import Product, share_getting_worse
from anytime.combination.stacking import Stacking

__all__ = ["Boosting", "CombinedNetwork", "Ensemble", "Product", "Stacking", "combine", "share_getting_worse"]
