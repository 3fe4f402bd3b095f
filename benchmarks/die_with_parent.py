"""Run a program that is killed when its parent dies.

``python -m benchmarks.die_with_parent PROGRAM ARGS``: a benchmark that is killed cannot clean up,
and must still leave no process on a GPU.
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
    # unshare ignores SIGTERM, and kills its own child when it is killed.
    end_with_parent(signal.SIGKILL if sys.argv[1] == "unshare" else signal.SIGTERM)
    os.execvp(sys.argv[1], sys.argv[1:])
