"""Waits on what the supervisor shows: until memory is back, until a GPU can be had."""

from __future__ import annotations

import time

from sentinel.control import GpuView, Phase
from sentinel.service.problems import Code, ProblemError
from sentinel.service.views import Views
from sentinel.units import format_duration, format_size

__all__ = ["memory_back", "released", "something_else"]

#: The states of a stressor in which GPU memory is, or may be, in our hands.
_HOLDS = {"STARTING", "RUNNING", "STOPPING"}
#: What somebody may have given back is looked for this often, in seconds, if nothing shows it.
_LOOK_AGAIN = 5.0


async def memory_back(views: Views, gpus: tuple[str, ...], deadline: float) -> None:
    """Return when our stressors are gone from these GPUs, all where none is named, memory and all.

    Raises:
        ProblemError: They are not at ``deadline``, or the daemon ended.
    """
    if not await views.until(lambda: not _holding(views, gpus), deadline):
        raise ProblemError(Code.TIMEOUT, f"Still held: {_named(_holding(views, gpus))}.")


async def released(views: Views, deadline: float) -> None:
    """Return when the daemon has let go of the driver.

    Raises:
        ProblemError: It has not at ``deadline``, or it ended.
    """
    if not await views.until(lambda: views.host.phase is Phase.RELEASED, deadline):
        raise ProblemError(Code.TIMEOUT, "The driver has not been let go of yet.")


async def something_else(views: Views, deadline: float) -> None:
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


def _holding(views: Views, gpus: tuple[str, ...]) -> list[GpuView]:
    return [
        view
        for view in views.gpus
        if (view.uuid in gpus or not gpus) and view.stressor.upper() in _HOLDS
    ]


def _named(views: list[GpuView]) -> str:
    """Return which GPUs are held, how long they have been in that state, and how much of them."""
    return ", ".join(f"GPU {view.index} ({_state(view)})" for view in views)


def _state(view: GpuView) -> str:
    parts = [view.stressor.lower()]
    if view.since is not None:
        parts[0] += f" for {format_duration(max(0.0, time.monotonic() - view.since))}"
    if view.held:
        parts.append(format_size(view.held))
    return ", ".join(parts)
