"""Ctrl-C and polite kills, heard between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """Set by Ctrl-C or a polite kill, so that a run ends between two steps; a second one ends it at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before: dict[int, Any] = {n: signal.getsignal(n) or signal.SIG_DFL for n in (signal.SIGINT, signal.SIGTERM)}

    def request(number: int, _frame: object) -> None:
        event.set()
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, request)
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
