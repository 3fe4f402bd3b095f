"""Read the counters of all GPUs once, in processes of their own, since any call may hang."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from sentinel.protocol.counters import Counters


@dataclass(frozen=True, kw_only=True)
class CountersResult:
    """The counters of all GPUs of a node."""

    #: By index.
    counters: tuple[Counters, ...]
    #: Why the driver is unusable, or None.
    driver_error: str | None
    #: Whether a process survives SIGKILL, hung in the driver.
    stuck: bool
    #: The addresses of NVIDIA's GPUs on the PCI bus, or None if unknown.
    pci_devices: tuple[str, ...] | None = None


def read_counters(simulation: Path | None, uuids: Collection[str] | None = None) -> CountersResult:
    """Read the counters of GPUs; one on which a call hangs or crashes costs no other its own.

    Args:
        simulation: The folder of simulated GPUs, or None for the driver.
        uuids: The GPUs to read, or None for all.
    """
    raise NotImplementedError
