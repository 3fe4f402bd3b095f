"""What a process that a workload forks keeps of its stressor: nothing that holds a GPU.

The driver frees the memory of a GPU when the last process that has its files open is gone, and a
lock lasts as long. A forked process cannot use the GPU (CUDA does not survive a fork), so it closes
them at once. Forks by a library in C are not seen here. Many that end with it would delay its end:
their number is stated, and the late ones outlive it by a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
from collections.abc import Callable, Iterable
from functools import partial

#: The beginning of the paths of the driver's files.
DEVICES = "/dev/nvidia"
_FDS = "/proc/self/fd"
_LIBC = ctypes.CDLL(None)  # found before a fork: a child may not load libraries
_ALARM = ctypes.cast(_LIBC.alarm, ctypes.c_void_p)


#: A stressor that has forked more than so many is killed before them. Each takes 2 ms of a core to
#: exit, in competition with it: on two cores, 500 delayed a hand-over by up to a second.
_FEW = 8


def detach_forks(own: Iterable[int], devices: str, many: Callable[[], None]) -> None:
    """Have every process that is forked from now on close these files and those of the driver.

    Args:
        own: The files.
        devices: The beginning of the paths of the driver's.
        many: Called after each fork beyond the first few.
    """
    forks = itertools.count(1)  # goes on in the child
    os.register_at_fork(
        after_in_child=partial(_detach, [*own], devices),
        after_in_parent=lambda: many() if next(forks) > _FEW else None,
    )
    os.register_at_fork(after_in_child=lambda: _outlive() if next(forks) > _FEW else None)


def _detach(own: list[int], devices: str) -> None:
    for number in (*own, *_device_files(devices)):
        with contextlib.suppress(OSError):
            os.close(number)
    own.clear()  # a process forked by this one may have other files of these numbers


def _outlive() -> None:
    """Have SIGHUP end this process a second later, when the stressor has exited.

    The kernel hangs the stressor's group up before it closes the stressor's files. The handler is
    the C library's ``alarm``, which takes the signal's number for seconds: SIGALRM ends a process
    whose interpreter is held up, too. A program that it executes takes SIGHUP as usual.
    """
    _LIBC.signal(int(signal.SIGHUP), _ALARM)


def _device_files(devices: str) -> list[int]:
    """List the open files of the driver; none if this process may open no more files."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(_FDS):  # noqa: PTH208 - allocates less in a process just forked
            with contextlib.suppress(OSError):
                if os.readlink(f"{_FDS}/{name}").startswith(devices):  # noqa: PTH115 - as above
                    found.append(int(name))
    return found
