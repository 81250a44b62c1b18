"""Serving under deadlines: requests share batches stage by stage, and load makes answers shallower, not later."""
