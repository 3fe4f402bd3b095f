"""The Python client of a running sentinel daemon; standard library only."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentinel.client.client import Client as Client
    from sentinel.client.client import connect as connect
    from sentinel.client.event_stream import EventInfo as EventInfo
    from sentinel.client.event_stream import Status as Status
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

#: Names that are imported at their first use: `sentinel status` needs few of them.
_LAZY = {
    "AllocationInfo": "sentinel.protocol.api_types",
    "Client": "sentinel.client.client",
    "DaemonInfo": "sentinel.protocol.api_types",
    "EventInfo": "sentinel.client.event_stream",
    "GpuStatus": "sentinel.protocol.api_types",
    "Handover": "sentinel.protocol.api_types",
    "Holder": "sentinel.protocol.api_types",
    "MemoryBudget": "sentinel.protocol.api_types",
    "Outcome": "sentinel.protocol.api_types",
    "PastEvent": "sentinel.protocol.history_types",
    "PastReading": "sentinel.protocol.history_types",
    "PastUse": "sentinel.protocol.history_types",
    "Process": "sentinel.protocol.api_types",
    "ReservationInfo": "sentinel.protocol.api_types",
    "SessionInfo": "sentinel.protocol.api_types",
    "Status": "sentinel.client.event_stream",
    "TemperatureTrend": "sentinel.protocol.history_types",
    "connect": "sentinel.client.client",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
