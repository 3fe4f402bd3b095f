"""What scripts, the command line and other programs use to reach a running sentinel daemon."""

from sentinel.client.answers import (
    DaemonInfo,
    EventInfo,
    GpuStatus,
    Handover,
    Holder,
    Outcome,
    Process,
    ReservationInfo,
    Status,
)
from sentinel.client.verbs import Client, connect

__all__ = [
    "Client",
    "DaemonInfo",
    "EventInfo",
    "GpuStatus",
    "Handover",
    "Holder",
    "Outcome",
    "Process",
    "ReservationInfo",
    "Status",
    "connect",
]
