"""Set up a child process: its session, signals and names."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import termios
import tty
from collections.abc import Iterator
from multiprocessing import reduction
from typing import Any, Protocol

from setproctitle import setproctitle, setthreadtitle

from sentinel.errors import ChildExitCode

#: The short names, of at most 15 characters: the kernel keeps no more (proc(5)). Without one of its
#: own, a process would have the cut beginning of its title.
SENTINEL = "sentinel"
STRESSOR = "sentinel-stress"
STANDBY = "sentinel-spare"
PROBE = "sentinel-probe"
API = "sentinel-api"


def set_process_title(title: str, name: str = SENTINEL) -> None:
    """Set the title and the short name of this process; call it in the main thread.

    Args:
        title: What ``ps`` and ``nvidia-smi`` show, as the command line (/proc/PID/cmdline).
        name: What `sentinel status` shows, and ``pgrep`` finds (/proc/PID/comm).
    """
    setproctitle(title)
    setthreadtitle(name)


_PR_SET_PDEATHSIG = 1

#: Signals that a terminal or a service manager sends to all processes of a group.
_GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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


@contextlib.contextmanager
def group_signals_blocked() -> Iterator[None]:
    """Block the signals of a group, for a child that is spawned meanwhile and is still in it.

    It leaves the group in :func:`setup_child_process`, which discards those that have arrived:
    they are for the supervisor, and would look like a crash of the child.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hang_up_group_on_exit() -> None:
    """Have the kernel send SIGHUP to all processes of the own group once this one has ended.

    The parent-death signal does not reach processes that a workload has forked, and these would
    keep the GPU memory of this one. A session with a controlling terminal hangs up when its leader
    ends: see setsid(2) and tty_ioctl(4). Where there are no pseudo-terminals, only this is missing.
    """
    with contextlib.suppress(OSError, termios.error):
        _master, terminal = os.openpty()  # the first end stays open for the life of this process
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        # A program that asks for a password at /dev/tty must not wait: it cannot open the terminal,
        # and root reads an end of file.
        tty.setraw(terminal)
        modes = termios.tcgetattr(terminal)
        modes[6][termios.VMIN] = 0
        termios.tcsetattr(terminal, termios.TCSANOW, modes)
        fcntl.ioctl(terminal, termios.TIOCEXCL, 0)
        os.close(terminal)


def setup_child_process(parent: int, title: str, name: str = SENTINEL) -> None:
    """Start a session that ends with the parent, ignore SIGINT and set the process title.

    Call it first in the main thread of the child: the parent-death signal follows that thread.
    Standard output is redirected to standard error, so that libraries cannot print into the
    supervisor's output.

    Args:
        parent: The PID of the supervisor.
        title: The title; see :func:`~sentinel.host.processes.child_setup.set_process_title`.
        name: The short name.
    """
    os.setsid()
    for number in _GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # which discards a blocked one
        if number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)  # ignored under nohup
    _hang_up_group_on_exit()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _GROUP_SIGNALS)
    end_with_parent(parent)
    os.dup2(2, 1)
    set_process_title(title, name)


def end_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel signal this process when its parent ends; end now if that has ended.

    Args:
        parent: The PID of the parent.
        number: The signal.

    Raises:
        OSError: The kernel refuses it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(ChildExitCode.ORPHANED)
