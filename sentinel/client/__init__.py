"""The Python client of a running sentinel daemon; standard library only."""

from sentinel.client.client import Client, connect
from sentinel.client.types import EventInfo, Status
from sentinel.protocol.api_types import (
    AllocationInfo,
    DaemonInfo,
    GpuStatus,
    Handover,
    Holder,
    MemoryBudget,
    Outcome,
    Process,
    QueueEntry,
    ReservationInfo,
)
from sentinel.protocol.history_types import PastEvent, PastReading, PastUse, TemperatureTrend

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
    "QueueEntry",
    "ReservationInfo",
    "Status",
    "TemperatureTrend",
    "connect",
]
