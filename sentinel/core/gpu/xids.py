"""Report the XIDs of a GPU, and mark those that Sentinel caused by ending its stressor. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.events import gpu_event
from sentinel.core.gpu_state import GpuState, OwnEnd
from sentinel.core.observation import Observation
from sentinel.core.step import Step
from sentinel.core.stressor_state import StopCause, Stopping

#: How long after Sentinel killed a process its XIDs are Sentinel's doing, in seconds.
KILL_WINDOW_S = 10.0
#: How long before its exit is seen a process may have been killed, in seconds. The driver reports
#: the XIDs of a kill while the process ends.
BEFORE_EXIT_S = 5.0

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
    ends = () if gpu_state.own_end is None else (gpu_state.own_end,)
    events = []
    for xid in seen.probe.xids if seen.probe is not None else ():
        if xid.uuid == gpu_state.gpu.uuid:
            own = is_of_own_end(xid.number, xid.at, None, ends)
            fields = {"xid": xid.number, "repeats": xid.repeats, "own": own, "reported_at": xid.at}
            events.append(gpu_event("gpu.xid", gpu_state, seen.now, **fields))
    return Step(gpu_state, events=tuple(events))


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
