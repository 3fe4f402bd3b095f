"""Report the XIDs of a GPU and the times of their watch; mark those of own kills. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.actions import Event
from sentinel.core.events import gpu_event
from sentinel.core.gpu_state import GpuState, OwnEnd, XidWindow
from sentinel.core.observation import Observation, ProbeFacts
from sentinel.core.step import Step
from sentinel.core.stressor_state import StopCause, Stopping

#: How long after Sentinel killed a process its XIDs are Sentinel's doing, in seconds.
KILL_WINDOW_S = 10.0
#: How long before its exit is seen a process may have been killed, in seconds. The driver reports
#: the XIDs of a kill while the process ends.
BEFORE_EXIT_S = 5.0

#: The watch of XIDs goes on for so long after it was confirmed, in seconds: twice the interval and
#: a busy host.
CONFIRMED_S = 6.0

#: What the driver reports of a process that was killed while the GPU worked for it.
_OF_A_KILL = (43, 45)


def is_of_own_end(number: int, at: float, pid: int | None, ends: Iterable[OwnEnd]) -> bool:
    """Check whether an XID follows from the end that Sentinel gave one of its processes.

    Args:
        number: The XID.
        at: When the driver reported it.
        pid: The process that the driver names; None if it names none, as NVML never does.
        ends: The ends of Sentinel's processes on the same GPU.
    """
    return number in _OF_A_KILL and any(
        pid in {None, end.pid} and 0 <= at - end.at <= KILL_WINDOW_S for end in ends
    )


def report(gpu_state: GpuState, seen: Observation, _: Config) -> Step[GpuState]:
    """Remember an end that Sentinel gave the stressor, and report the XIDs since the last tick."""
    gpu_state = _with_end(gpu_state)
    if seen.probe is None:
        return Step(gpu_state)
    ends = () if gpu_state.own_end is None else (gpu_state.own_end,)
    events = []
    for xid in seen.probe.xids:
        if xid.uuid == gpu_state.gpu.uuid:
            fields = {
                "xid": xid.number,
                "repeats": xid.repeats,
                "own": is_of_own_end(xid.number, xid.at, None, ends),
                "reported_at": xid.at,
                "last_at": xid.last_at,
            }
            events.append(gpu_event("gpu.xid", gpu_state, seen.now, **fields))
    return Step(gpu_state, events=tuple(events)).then(_follow_watch, seen.probe, seen.now)


def _follow_watch(gpu_state: GpuState, probe: ProbeFacts, now: float) -> Step[GpuState]:
    """Confirm the watch of a GPU's XIDs; in a burn-in, report one that was broken."""
    before, watch = gpu_state.xids_watched, probe.xids_watched
    since = {gpu.uuid: gpu.since for gpu in watch.gpus} if watch is not None else {}
    first = since.get(gpu_state.gpu.uuid)
    if first is None or watch is None:
        return Step(gpu_state)
    events: tuple[Event, ...] = ()
    if before is not None and before.first != first and gpu_state.burnin is not None:
        events = (_window_event(gpu_state, before, now),)
    window = XidWindow(first=first, last=watch.at)
    return Step(replace(gpu_state, xids_watched=window), events=events)


def window_until(gpu_state: GpuState, now: float) -> tuple[Event, ...]:
    """Report until now the time in which the XIDs of a GPU were watched without a break."""
    window = gpu_state.xids_watched
    if window is None:
        return ()
    if now - window.last <= CONFIRMED_S:
        window = replace(window, last=now)
    return (_window_event(gpu_state, window, now),)


def _window_event(gpu_state: GpuState, window: XidWindow, now: float) -> Event:
    values = vars(window)
    return gpu_event("burnin.measured", gpu_state, now, kind="XidsWatched", values=values)


def _with_end(gpu_state: GpuState) -> GpuState:
    """Remember when Sentinel ended the stressor; a crash of it is none of its doing."""
    match gpu_state.stressor:
        case Stopping(cause=StopCause.EXITED, kill_sent=False, killed_at=None):
            return gpu_state
        case Stopping(child=child, since=since, killed_at=killed_at, exit=exit_):
            at = since if killed_at is None else killed_at
            if killed_at is None and exit_ is not None:  # it was asked, and took its time
                at = max(since, exit_.at - BEFORE_EXIT_S)
            end = OwnEnd(pid=child.pid if child is not None else 0, at=at)
            return gpu_state if end == gpu_state.own_end else replace(gpu_state, own_end=end)
        case _:
            return gpu_state
