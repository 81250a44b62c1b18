"""Keep the memory that a step frees for the next step, and the garbage collector away from what stays."""

import ctypes
import gc
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


def keep_freed_memory() -> bool:
    """Ask the C library not to return memory to the system between two steps; returns whether it does so.

    A step on a CPU frees and allocates gigabytes in large blocks, which glibc returns to the system each time. To get
    them back, page by page and zeroed, takes up to a fifth of the step. For processes that only train.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(which, 2**31 - 1) for which in (_TRIM_THRESHOLD, _MMAP_THRESHOLD))


def steady() -> None:
    """Take all that there is now out of the garbage collector's sight. For servers, once they are ready.

    A full collection looks at every object of torch and of the program, which takes a tenth of a second; afterwards
    only what requests have left behind is looked at.
    """
    gc.collect()
    gc.freeze()
