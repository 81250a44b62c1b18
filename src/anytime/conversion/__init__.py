"""Conversion of any PyTorch model to an anytime network."""
