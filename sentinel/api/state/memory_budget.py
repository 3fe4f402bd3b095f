"""The memory budget of each GPU, and the wait until allocated memory is free."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sentinel.api.http.errors import ProblemError
from sentinel.api.state.snapshots import Views
from sentinel.protocol.api_types import MemoryBudget
from sentinel.protocol.problem import Code
from sentinel.protocol.views import Allocation, GpuView
from sentinel.units import format_size


def budget(view: GpuView, allocations: Sequence[Allocation]) -> MemoryBudget:
    """Compute the budget of one GPU from all ``allocations``."""
    sizes = [one.size for one in allocations if one.gpu == view.uuid]
    return MemoryBudget(
        gpu=view.uuid,
        index=view.index,
        total=view.memory_total,
        limit=view.budget,
        allocated=sum(sizes),
        available=max(0, view.budget - sum(sizes)),
        count=len(sizes),
    )


def shortage(view: GpuView) -> int | None:
    """Compute how many bytes of the outstanding allocations are not free, or None if not known.

    Memory that the holder and its children use already is not outstanding.
    """
    return None if view.memory_free is None else max(0, view.outstanding - view.memory_free)


async def memory_free(views: Views, gpu: str, after: float, deadline: float) -> None:
    """Wait until all outstanding allocations of a GPU are free.

    Args:
        views: The supervisor's state.
        gpu: The GPU's UUID.
        after: The time of the allocation, of the monotonic clock: only later readings count.
        deadline: When to give up.

    Raises:
        ProblemError: The memory is not free at ``deadline``, or the daemon ended.
    """

    def is_free() -> bool:
        return _obstacle(views, gpu, after) is None

    if not await views.until(is_free, deadline):
        why = _obstacle(views, gpu, after)
        raise ProblemError(
            Code.TIMEOUT, f"The memory is not free yet: {why}. Nothing is allocated."
        )


def _obstacle(views: Views, gpu: str, after: float) -> str | None:
    """Describe why the outstanding memory of a GPU may not be free, or None if it is free."""
    view = views.gpu(gpu)
    if view is None:
        return "the state of the GPU is not known"
    name = f"GPU {view.index}"
    missing = shortage(view)
    if missing is None:
        return f"{name} cannot be read: {view.reason}"
    if missing:
        state = f"{view.occupancy.lower()}, {view.stressor.lower()}"
        return f"{name} ({state}) has {format_size(missing)} too little"
    if min(view.at, view.read or 0.0) <= after:
        return f"{name} was not read since"
    if view.ended is not None and (view.read or 0.0) <= view.ended:
        return f"{name} was not read since its stressor ended"
    if view.stressor == "STARTING" and (view.since or 0.0) <= after:
        # Its size was decided before the allocation.
        age = time.monotonic() - (view.since or 0.0)
        return f"a stressor on {name} started {age:.1f} s ago, and is released first"
    return None
