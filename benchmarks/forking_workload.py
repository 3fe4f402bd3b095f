"""Workloads that keep forked copies of themselves, which a stressor's end has to include."""

from __future__ import annotations

import ctypes
import signal
from os import fork
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from sentinel.workloads import WorkloadContext


def by_python(ctx: WorkloadContext, *, count: int = 60) -> None:
    """Fork by Python, whose copies close the GPU's files at once, and then add to the memory."""
    _run(ctx, fork, count)


def by_c(ctx: WorkloadContext, *, count: int = 60) -> None:
    """Fork as a library in C does: the copies keep the GPU's files, and so its memory."""
    _run(ctx, ctypes.PyDLL(None).fork, count)


def _run(ctx: WorkloadContext, forks: Callable[[], int], count: int) -> None:
    ctx.pace()
    for chunk in ctx.chunks:
        chunk.add_(1)  # the kernel's module, if loaded after Ready, would be a newcomer's memory
    for _ in range(count):
        if not forks():
            while True:
                signal.pause()
    while ctx.pace():
        for chunk in ctx.chunks:
            chunk.add_(1)
        ctx.report(iterations=1)
