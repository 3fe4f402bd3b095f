"""Waits for a state of the supervisor: memory released, GPUs free, allocated memory free."""

from __future__ import annotations

import time
from collections.abc import Callable

from sentinel.api.http.errors import ProblemError
from sentinel.api.state.snapshots import Views
from sentinel.protocol.problem import Code
from sentinel.protocol.views import GpuView, Phase
from sentinel.units import format_duration, format_indices, format_size

#: The states in which a stressor holds GPU memory, or may hold some.
_HOLDING = {"STARTING", "RUNNING", "STOPPING"}


async def stressors_gone(views: Views, gpus: tuple[str, ...], deadline: float) -> None:
    """Wait until the stressors on these GPUs, or on all, have ended and their memory is free.

    A released driver fulfils this: no memory is held then, and no GPU is read.

    Raises:
        ProblemError: Memory is held at ``deadline``, or the daemon ended.
    """

    def are_gone() -> bool:
        return views.host.phase is Phase.RELEASED or not _filter(views, gpus, _is_held)

    if not await views.until(are_gone, deadline):
        held = _describe(_filter(views, gpus, _is_held))
        raise ProblemError(Code.TIMEOUT, f"Still held: {held}.")


async def gpus_free(views: Views, gpus: tuple[str, ...], deadline: float) -> None:
    """Wait until a reading shows these GPUs without a stressor and without foreign processes.

    Raises:
        ProblemError: A GPU is not free at ``deadline``, or the daemon ended.
    """
    if not await views.until(lambda: not _filter(views, gpus, _is_used), deadline):
        used = _describe(_filter(views, gpus, _is_used))
        raise ProblemError(Code.TIMEOUT, f"Not free yet: {used}.")


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


async def driver_released(views: Views, deadline: float) -> None:
    """Wait until the daemon has released the driver.

    Raises:
        ProblemError: The driver is in use at ``deadline``, or the daemon ended.
    """
    if not await views.until(lambda: views.host.phase is Phase.RELEASED, deadline):
        raise ProblemError(Code.TIMEOUT, "The driver is not released yet.")


def _filter(
    views: Views, gpus: tuple[str, ...], predicate: Callable[[GpuView], bool]
) -> list[GpuView]:
    """Filter these GPUs, or all if ``gpus`` is empty."""
    return [view for view in views.gpus if (view.uuid in gpus or not gpus) and predicate(view)]


def _is_held(view: GpuView) -> bool:
    """Check whether a stressor holds memory, may hold some, or left some behind."""
    if view.stressor in _HOLDING:
        return True
    return view.ended is not None and (_is_unread(view) or view.leaked)


def _is_used(view: GpuView) -> bool:
    """Check whether a process uses a GPU, or may use it, or memory is leaked."""
    in_use = view.occupancy != "IDLE" or view.leaked or bool(view.allocated_processes)
    return view.stressor in _HOLDING or in_use or _is_unread(view)


def _is_unread(view: GpuView) -> bool:
    """Check whether a GPU was not read since its last stressor ended."""
    return view.ended is not None and (view.read is None or view.read <= view.ended)


def _describe(views: list[GpuView]) -> str:
    """Describe GPUs by their state, its duration and the memory of their stressors.

    Those of one state are described together, by the longest duration and all of the memory.
    """
    groups: dict[tuple[str, ...], list[GpuView]] = {}
    for view in views:
        groups.setdefault(_words(view), []).append(view)
    return ", ".join(_describe_group(words, group) for words, group in groups.items())


def _describe_group(words: tuple[str, ...], views: list[GpuView]) -> str:
    one = len(views) == 1
    state, *more = words
    since = [view.since for view in views if view.since is not None]
    if since:
        longest = format_duration(max(0.0, time.monotonic() - min(since)))
        state += f" for {'' if one else 'up to '}{longest}"
    held = sum(view.held or 0 for view in views)
    memory = [f"{format_size(held)}{'' if one else ' in all'}"] if held else []
    indices = format_indices(view.index for view in views)
    return f"GPU{'' if one else 's'} {indices} ({', '.join([state, *memory, *more])})"


def _words(view: GpuView) -> tuple[str, ...]:
    """Name the state of a GPU, and what else keeps it from being free."""
    words = [view.stressor.lower()]
    if view.stressor not in _HOLDING:
        if _is_unread(view):
            words.append("not read since")
        if view.leaked:
            words.append("memory leaked")
        elif view.occupancy != "IDLE":
            words.append(view.occupancy.lower())
    return tuple(words)


def _obstacle(views: Views, gpu: str, after: float) -> str | None:
    """Describe why the outstanding memory of a GPU may not be free, or None if it is free."""
    view = views.gpu(gpu)
    if view is None:
        return "the state of the GPU is not known"
    name = f"GPU {view.index}"
    missing = _shortage(view)
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


def _shortage(view: GpuView) -> int | None:
    """Compute how many bytes of the outstanding allocations are not free, or None if not known.

    Memory that the holder and its children use already is not outstanding.
    """
    return None if view.memory_free is None else max(0, view.outstanding - view.memory_free)
