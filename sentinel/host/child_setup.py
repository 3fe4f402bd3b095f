"""The first setup of every child of the supervisor, before anything that can fail."""

from __future__ import annotations

import ctypes
import os
import signal
from multiprocessing import reduction
from typing import Any, Protocol

from setproctitle import setproctitle

from sentinel.errors import ChildExitCode

_PR_SET_PDEATHSIG = 1


class InheritedFd(Protocol):
    """A file descriptor that a spawned child inherits: multiprocessing.reduction.DupFd."""

    def detach(self) -> int:
        """Return the descriptor in the child, once."""


class Inherited:
    """A file descriptor that a spawned child gets a duplicate of; ``detach()`` there returns it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _identity, (reduction.DupFd(self._fd),)


def _identity(value: object) -> object:
    return value


def setup_child_process(parent: int, title: str) -> None:
    """Start a session, set the parent-death signal, ignore SIGINT and set the process title.

    Call it first in the main thread of the child: the parent-death signal follows that thread.
    Standard output is redirected to standard error, so that libraries cannot print into the
    supervisor's output.

    Args:
        parent: The PID of the supervisor.
        title: The title that ``ps`` and ``nvidia-smi`` show.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # the parent died before the signal was set
        os._exit(ChildExitCode.ORPHANED)
    os.dup2(2, 1)
    setproctitle(title)
