"""Memory that a training process has freed is kept for its next step."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


def keep_freed_memory() -> bool:
    """Ask the C library not to return memory to the system between two steps; says whether it listens.

    A step on a processor frees and takes gigabytes in large blocks, which glibc hands back each time; to get them
    again, page by page and zeroed, takes up to a fifth of the step. For processes that do nothing else than train.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(which, 2**31 - 1) for which in (_TRIM_THRESHOLD, _MMAP_THRESHOLD))
