"""What a process that a workload forks keeps of its stressor: nothing that holds a GPU.

The driver frees the memory of a GPU when the last process that has its files open is gone, and a
lock lasts as long. A forked process cannot use the GPU (CUDA does not survive a fork), so it closes
them at once. Forks by a library in C are not seen here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from functools import partial

_DEVICES = "/dev/nvidia"
_FDS = "/proc/self/fd"


def detach_forks(own: Iterable[int]) -> None:
    """Have every process that is forked from now on close these files and those of the driver."""
    os.register_at_fork(after_in_child=partial(_detach, tuple(own)))


def _detach(own: tuple[int, ...]) -> None:
    for number in (*own, *_device_files()):
        with contextlib.suppress(OSError):
            os.close(number)


def _device_files() -> list[int]:
    """List the open files of the driver; none if this process may open no more files."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(_FDS):  # noqa: PTH208 - allocates less in a process just forked
            with contextlib.suppress(OSError):
                if os.readlink(f"{_FDS}/{name}").startswith(_DEVICES):  # noqa: PTH115 - as above
                    found.append(int(name))
    return found
