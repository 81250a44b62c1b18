"""Serving under deadlines: the engine, and HTTP in front of it."""
