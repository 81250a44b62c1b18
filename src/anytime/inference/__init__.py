"""Inference: predictions under limits, in the background, and with early exit per sample."""
