"""Make events of one GPU, and say who is on it. Every name is listed in docs/events.md. Pure."""

from __future__ import annotations

from sentinel.core.actions import Event
from sentinel.core.state import Busy, Slot


def slot_event(name: str, slot: Slot, now: float, **fields: object) -> Event:
    """Return an event about the GPU of ``slot``."""
    return Event(name=name, at=now, gpu=slot.gpu.uuid, fields=fields)


def who(slot: Slot) -> list[dict[str, object]]:
    """Return the foreign processes on the GPU, as a field of an event."""
    if not isinstance(slot.occupancy, Busy):
        return []
    return [
        {"pid": process.pid, "name": process.name, "user": process.user}
        for process in slot.occupancy.by
    ]
