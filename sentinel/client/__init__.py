"""What scripts, the command line and other programs use to reach a running sentinel daemon."""

from sentinel.client.answers import (
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
from sentinel.client.recorded import PastEvent, PastReading, PastUse, TemperatureTrend
from sentinel.client.verbs import Client, connect

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
