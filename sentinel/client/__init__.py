"""The Python client of a running sentinel daemon; standard library only."""

from sentinel.client.allocations import Allocation
from sentinel.client.client import Client, connect
from sentinel.client.reservations import Reservation
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
    ReservationInfo,
)
from sentinel.protocol.history_types import PastEvent, PastReading, PastUse, TemperatureTrend

__all__ = [
    "Allocation",
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
    "Reservation",
    "ReservationInfo",
    "Status",
    "TemperatureTrend",
    "connect",
]
