"""Everything that the author of a driver imports; ``docs/internals/architecture.md`` describes it.

A driver runs in the probe alone: no other process imports it.
"""

from sentinel.probe.driver import (
    BasicDriver,
    Driver,
    DriverError,
    DriverGoneError,
    GpuLostError,
    NoXids,
    ReadError,
    TooManyProcessesError,
    Xid,
    XidSource,
    merge_lists,
)
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, ProcessKind, Telemetry

__all__ = [
    "BasicDriver",
    "Driver",
    "DriverError",
    "DriverGoneError",
    "Gpu",
    "GpuLostError",
    "GpuProcess",
    "Memory",
    "NoXids",
    "ProcessKind",
    "ReadError",
    "Telemetry",
    "TooManyProcessesError",
    "Xid",
    "XidSource",
    "merge_lists",
]
