"""Build the events of one GPU. docs/events.md lists every event name. Pure."""

from __future__ import annotations

from sentinel.core.actions import Event
from sentinel.core.gpu_state import Busy, GpuState
from sentinel.protocol.gpu import Reading
from sentinel.protocol.stressor import Progress


def gpu_event(name: str, gpu_state: GpuState, now: float, **fields: object) -> Event:
    """Build an event about one GPU."""
    return Event(name=name, at=now, gpu=gpu_state.gpu.uuid, fields=fields)


def process_fields(gpu_state: GpuState) -> list[dict[str, object]]:
    """Return the foreign processes on a GPU as a field of an event."""
    if not isinstance(gpu_state.occupancy, Busy):
        return []
    return [
        {"pid": process.pid, "name": process.name, "user": process.user}
        for process in gpu_state.occupancy.processes
    ]


def sensor_fields(reading: Reading | None) -> dict[str, object]:
    """Return the load of a GPU as fields of an event or a view."""
    return {
        "power_w": reading.power if reading else None,
        "temperature_c": reading.temperature if reading else None,
        "sm_clock_mhz": reading.sm_clock if reading else None,
    }


def usage_fields(reading: Reading | None) -> dict[str, object]:
    """Return memory, utilisation and load of a GPU as fields of an event or a view."""
    return {
        "memory_used": reading.memory.used if reading and reading.memory else None,
        "utilization": reading.utilization if reading else None,
        **sensor_fields(reading),
    }


def progress_fields(progress: Progress | None) -> dict[str, object]:
    """Return the rates and checks of a stressor as fields; empty before its first report."""
    if progress is None or progress.seconds <= 0:
        return {}
    return {
        "iterations_per_s": progress.iterations / progress.seconds,
        "flops_per_s": progress.flops / progress.seconds,
        "bytes_per_s": progress.bytes / progress.seconds,
        "checks": progress.checks,
        "errors": progress.errors,
    }
