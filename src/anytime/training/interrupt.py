"""SIGINT (Ctrl-C) and SIGTERM end a run between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """An event that SIGINT or SIGTERM sets, so that a run can end between two steps; a second signal ends it."""
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
