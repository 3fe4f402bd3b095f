"""What scripts, the command line and other programs use to reach a running sentinel daemon."""

from sentinel.client.client import Client, connect
from sentinel.client.history import PastEvent, PastReading, PastUse, TemperatureTrend
from sentinel.client.types import (
    AllocationInfo,
    DaemonInfo,
    EventInfo,
    GpuStatus,
    Handover,
    Holder,
    MemoryBudget,
    Outcome,
    Process,
    ReservationInfo,
    Status,
)

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
    "Status",
    "TemperatureTrend",
    "connect",
]
