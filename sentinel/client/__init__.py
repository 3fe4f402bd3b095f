"""The Python client of a running sentinel daemon; standard library only."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentinel.client.client import Client as Client
    from sentinel.client.client import Status as Status
    from sentinel.client.client import connect as connect
    from sentinel.client.event_stream import EventInfo as EventInfo
    from sentinel.protocol.api_types import AllocationInfo as AllocationInfo
    from sentinel.protocol.api_types import DaemonInfo as DaemonInfo
    from sentinel.protocol.api_types import GpuStatus as GpuStatus
    from sentinel.protocol.api_types import Handover as Handover
    from sentinel.protocol.api_types import Holder as Holder
    from sentinel.protocol.api_types import MemoryBudget as MemoryBudget
    from sentinel.protocol.api_types import Outcome as Outcome
    from sentinel.protocol.api_types import Process as Process
    from sentinel.protocol.api_types import ReservationInfo as ReservationInfo
    from sentinel.protocol.api_types import SessionInfo as SessionInfo
    from sentinel.protocol.history_types import PastEvent as PastEvent
    from sentinel.protocol.history_types import PastReading as PastReading
    from sentinel.protocol.history_types import PastUse as PastUse
    from sentinel.protocol.history_types import TemperatureTrend as TemperatureTrend

__all__ = [
    "AllocationInfo",
    "Client",
    "DaemonInfo",
    "EventInfo",
    "GpuStatus",
    "Handover",
    "Holder",
    "MemoryBudget",
    "Outcome",
    "PastEvent",
    "PastReading",
    "PastUse",
    "Process",
    "ReservationInfo",
    "SessionInfo",
    "Status",
    "TemperatureTrend",
    "connect",
]

#: The names by their modules, which are imported at the first use: `sentinel status` needs few.
_NAMES = {
    "sentinel.client.client": ("Client", "Status", "connect"),
    "sentinel.client.event_stream": ("EventInfo",),
    "sentinel.protocol.api_types": (
        *("AllocationInfo", "DaemonInfo", "GpuStatus", "Handover", "Holder", "MemoryBudget"),
        *("Outcome", "Process", "ReservationInfo", "SessionInfo"),
    ),
    "sentinel.protocol.history_types": ("PastEvent", "PastReading", "PastUse", "TemperatureTrend"),
}
_LAZY = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
