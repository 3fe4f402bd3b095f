"""Waits on what the supervisor shows: until memory is back, until a GPU can be had."""

from __future__ import annotations

import time
from collections.abc import Callable

from sentinel.api.http.errors import ProblemError
from sentinel.api.state.snapshots import Views
from sentinel.protocol.api_types import Code
from sentinel.protocol.views import GpuView, Phase
from sentinel.units import format_duration, format_size

#: The states of a stressor in which GPU memory is, or may be, in our hands.
_HOLDS = {"STARTING", "RUNNING", "STOPPING"}
#: What somebody may have given back is looked for this often, in seconds, if nothing shows it.
_LOOK_AGAIN = 5.0


async def memory_back(views: Views, gpus: tuple[str, ...], deadline: float) -> None:
    """Return when our stressors are gone from these GPUs, all where none is named, memory and all.

    Once the driver is let go of that is so: nothing is held then, and nothing is read any more.

    Raises:
        ProblemError: They are not at ``deadline``, or the daemon ended.
    """

    def met() -> bool:
        return views.host.phase is Phase.RELEASED or not _filter(views, gpus, _held)

    if not await views.until(met, deadline):
        raise ProblemError(Code.TIMEOUT, f"Still held: {_named(_filter(views, gpus, _held))}.")


async def gpus_free(views: Views, gpus: tuple[str, ...], deadline: float) -> None:
    """Return when these GPUs were seen to be free: nobody is on them, neither we nor another.

    Raises:
        ProblemError: They are not at ``deadline``, or the daemon ended.
    """
    if not await views.until(lambda: not _filter(views, gpus, _taken), deadline):
        raise ProblemError(Code.TIMEOUT, f"Not free yet: {_named(_filter(views, gpus, _taken))}.")


async def released(views: Views, deadline: float) -> None:
    """Return when the daemon has let go of the driver.

    Raises:
        ProblemError: It has not at ``deadline``, or it ended.
    """
    if not await views.until(lambda: views.host.phase is Phase.RELEASED, deadline):
        raise ProblemError(Code.TIMEOUT, "The driver has not been let go of yet.")


async def availability_changed(views: Views, deadline: float) -> None:
    """Return when another GPU may be had than before, at the latest some seconds from now.

    Raises:
        ProblemError: The daemon ended.
    """
    before = _standing(views)
    look_again = min(deadline, time.monotonic() + _LOOK_AGAIN)
    await views.until(lambda: _standing(views) != before, look_again)


def _standing(views: Views) -> tuple[object, ...]:
    """Return all that decides whether GPUs can be had."""
    gpus = tuple((view.uuid, view.occupancy, view.admin, view.reservation) for view in views.gpus)
    return (*gpus, *(held.id for held in views.host.reservations))


def _filter(views: Views, gpus: tuple[str, ...], so: Callable[[GpuView], bool]) -> list[GpuView]:
    """Return those of these GPUs, of all where none is named, of which something is so."""
    return [view for view in views.gpus if (view.uuid in gpus or not gpus) and so(view)]


def _held(view: GpuView) -> bool:
    """Return whether GPU memory is, or may be, in our hands, or in nobody's after us."""
    if view.stressor in _HOLDS:
        return True
    return view.ended is not None and (_unread(view) or view.leaked)


def _taken(view: GpuView) -> bool:
    """Return whether somebody is, or may be, on a GPU, or something is left of us."""
    in_use = view.occupancy != "IDLE" or view.leaked or bool(view.allocated_processes)
    return view.stressor in _HOLDS or in_use or _unread(view)


def _unread(view: GpuView) -> bool:
    """Return whether a GPU was not read since our last stressor on it was gone."""
    return view.ended is not None and (view.read is None or view.read <= view.ended)


def _named(views: list[GpuView]) -> str:
    """Return which GPUs are held, how long they have been in that state, and how much of them."""
    return ", ".join(f"GPU {view.index} ({_state(view)})" for view in views)


def _state(view: GpuView) -> str:
    parts = [view.stressor.lower()]
    if view.since is not None:
        parts[0] += f" for {format_duration(max(0.0, time.monotonic() - view.since))}"
    if view.held:
        parts.append(format_size(view.held))
    if view.stressor not in _HOLDS:
        if _unread(view):
            parts.append("not read since")
        if view.leaked:
            parts.append("in use by nobody")
        elif view.occupancy != "IDLE":
            parts.append(view.occupancy.lower())
    return ", ".join(parts)
