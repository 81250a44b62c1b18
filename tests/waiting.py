"""Wait for what another thread, process or page does."""

import time

LONG = 300
"""Seconds: what takes longer hangs, even on a busy machine."""


def until(condition):
    """Wait until a condition holds; returns its value."""
    end = time.monotonic() + LONG
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return value
