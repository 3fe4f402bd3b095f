"""Run a program that ends with whoever started it: ``python -m benchmarks.leash PROGRAM ARGS``.

A benchmark that is killed must leave no process on a GPU, and cannot clean up any more by then.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals) -> None:
    """Have the kernel send ``number`` to this process when its parent dies; survives an exec."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_PDEATHSIG) failed")


if __name__ == "__main__":
    # unshare ignores SIGTERM, and takes its own child with it when it is killed.
    end_with_parent(signal.SIGKILL if sys.argv[1] == "unshare" else signal.SIGTERM)
    os.execvp(sys.argv[1], sys.argv[1:])
