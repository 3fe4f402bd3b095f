"""Make events of one GPU, and say who is on it. Every name is listed in docs/events.md. Pure."""

from __future__ import annotations

from sentinel.core.actions import Event
from sentinel.core.state import Busy, GpuState


def gpu_event(name: str, gpu_state: GpuState, now: float, **fields: object) -> Event:
    """Return an event about the GPU of ``gpu_state``."""
    return Event(name=name, at=now, gpu=gpu_state.gpu.uuid, fields=fields)


def who(gpu_state: GpuState) -> list[dict[str, object]]:
    """Return the foreign processes on the GPU, as a field of an event."""
    if not isinstance(gpu_state.occupancy, Busy):
        return []
    return [
        {"pid": process.pid, "name": process.name, "user": process.user}
        for process in gpu_state.occupancy.processes
    ]
