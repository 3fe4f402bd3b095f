"""The status and the view of an occupied GPU, with what a test changes."""

from __future__ import annotations

from typing import Any

from sentinel.protocol.api_types import GpuStatus
from sentinel.protocol.views import GpuView


def gpu_status(index: int = 0, **fields: Any) -> GpuStatus:
    """Build the status of a GPU; its bus number is higher by one."""
    return GpuStatus(**(_usual(index) | fields))


def gpu_view(index: int = 0, at: float = 100.0, **fields: Any) -> GpuView:
    """Build the view of a GPU; its bus number is higher by one."""
    return GpuView(at=at, **(_usual(index) | fields))


def _usual(index: int) -> dict[str, Any]:
    return {
        "uuid": f"GPU-{index}",
        "index": index,
        "name": "NVIDIA H200",
        "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
        "memory_total": 140 * 2**30,
        "occupancy": "IDLE",
        "stressor": "RUNNING",
        "admin": "ENABLED",
        "rule": "running",
        "reason": "running",
    }
