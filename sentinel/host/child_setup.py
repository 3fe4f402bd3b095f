"""The first things that every child of the supervisor does, before anything that can go wrong."""

from __future__ import annotations

import ctypes
import os
import signal

from setproctitle import setproctitle

from sentinel.protocol.stressor import ChildExitCode

_PR_SET_PDEATHSIG = 1


def setup_child_process(parent: int, title: str) -> None:
    """Lead a session of our own, die with ``parent``, leave Ctrl+C to it and say what we are.

    Called first in a child's main thread, the one that lives as long as the child does. What a
    library prints goes to standard error, so that the supervisor's standard output stays its own.

    Args:
        parent: The PID of the supervisor.
        title: What ``ps`` and ``nvidia-smi`` show.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before the signal was set
        os._exit(ChildExitCode.ORPHANED)
    os.dup2(2, 1)
    setproctitle(title)
