"""What is promised of each GPU's memory, what is left of it, and whether it is free by now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, Field

from sentinel.api.http.errors import Code, ProblemError
from sentinel.api.schemas import status
from sentinel.api.state.snapshots import Views
from sentinel.protocol.views import Allocation, GpuView
from sentinel.units import format_size

#: More than any GPU has, in bytes: numbers beyond it are mistakes.
_MOST = 2**50

Name = Annotated[
    str,
    Field(
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$",
        description="By what name, of letters, digits and `._:-`, it is given back.",
    ),
]


class AllocationRequest(status.RequestModel):
    """Have a part of a GPU's memory kept for a process and its children: the one that asks."""

    id: Name
    gpu: Annotated[str, Field(max_length=256)] = "0"
    size: int = Field(gt=0, le=_MOST, description="Bytes.")
    pid: int | None = Field(
        default=None,
        gt=0,
        le=2**31 - 1,
        description="For this process of the same user instead; Unix socket only.",
    )
    wait_s: status.WaitS = 30.0


class Allocated(status.ResponseModel):
    """Memory that was promised, and is free."""

    allocation: status.Allocation


class Budget(BaseModel):
    """How much of a GPU's memory may be promised in all, is promised, and may be yet; bytes."""

    gpu: str
    index: int
    total: int
    limit: int
    allocated: int
    available: int
    count: int


class Allocations(status.ResponseModel):
    """All memory that is promised, and what is left of each GPU's."""

    allocations: list[status.Allocation]
    gpus: list[Budget]


def budget(view: GpuView, allocations: Sequence[Allocation]) -> Budget:
    """Return what is promised of a GPU's memory and what may be yet."""
    here = [one.size for one in allocations if one.gpu == view.uuid]
    return Budget(
        gpu=view.uuid,
        index=view.index,
        total=view.memory_total,
        limit=view.budget,
        allocated=sum(here),
        available=max(0, view.budget - sum(here)),
        count=len(here),
    )


def shortage(view: GpuView) -> int | None:
    """Return how many bytes of what is promised on a GPU are not free; ``None`` is not known.

    What a holder and its children have taken already is not owed to them any more.
    """
    return None if view.memory_free is None else max(0, view.outstanding - view.memory_free)


async def memory_free(views: Views, gpu: str, after: float, deadline: float) -> None:
    """Return when all that is promised on a GPU was seen to be free.

    Args:
        views: What the supervisor shows.
        gpu: The GPU's UUID.
        after: When the promise was made, of the monotonic clock: only what was read later counts.
        deadline: When to give up.

    Raises:
        ProblemError: It was not at ``deadline``, or the daemon ended.
    """

    def met() -> bool:
        return _why_not(views, gpu, after) is None

    if not await views.until(met, deadline):
        why = _why_not(views, gpu, after)
        raise ProblemError(
            Code.TIMEOUT, f"The memory is not free yet: {why}. Nothing is allocated."
        )


def _why_not(views: Views, gpu: str, after: float) -> str | None:
    """Return why what is promised on a GPU is not known to be free, or ``None`` where it is."""
    view = views.gpu(gpu)
    if view is None:
        return "the GPU is not shown"
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
        return f"{name} was not read since our stressor is gone"
    if view.stressor == "STARTING" and (view.since or 0.0) <= after:
        # It takes what it was told to before the promise was made.
        began = time.monotonic() - (view.since or 0.0)
        return f"on {name} a stressor began {began:.1f} s ago, and is let go of"
    return None
