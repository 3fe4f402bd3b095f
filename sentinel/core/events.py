"""Build the events of one GPU. docs/events.md lists every event name. Pure."""

from __future__ import annotations

from sentinel.core.actions import Event
from sentinel.core.gpu_state import Busy, GpuState


def gpu_event(name: str, gpu_state: GpuState, now: float, **fields: object) -> Event:
    """Build an event about one GPU."""
    return Event(name=name, at=now, gpu=gpu_state.gpu.uuid, fields=fields)


def process_fields(gpu_state: GpuState) -> list[dict[str, object]]:
    """Return the foreign processes on a GPU as a field of an event."""
    if not isinstance(gpu_state.occupancy, Busy):
        return []
    return [
        {"pid": process.pid, "name": process.name, "user": process.user}
        for process in gpu_state.occupancy.processes
    ]
