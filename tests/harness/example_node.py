"""A fake node for the web page: up to sixteen GPUs in every state."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from sentinel.protocol.commands import Caller
from sentinel.protocol.gpu import GpuProcess, ProcessKind, Telemetry
from sentinel.protocol.views import (
    GpuHealth,
    GpuView,
    HandoverView,
    HostView,
    Reservation,
    VerifiedCounts,
    VerifiedWork,
)
from tests.harness.api_harness import FakeSupervisor, used_gpu

GIB = 2**30
TOTAL = 141 * GIB

_GRAPHICS = ProcessKind.GRAPHICS

#: The states of the GPUs, in rotation; missing fields are those of an occupied GPU.
_STATES: tuple[dict[str, Any], ...] = (
    {},
    {"health": GpuHealth.NORMAL, "multiplier": 0.8, "temperature_c": 71},
    {
        "stressor": "STOPPED",
        "occupancy": "BUSY",
        "rule": "busy",
        "reason": "used by foreign processes",
        "processes": (
            GpuProcess(pid=48213, name="torchrun", user="anna", memory=96 * GIB),
            GpuProcess(pid=1904, name="Xorg", user="root", memory=2**20 * 42, kind=_GRAPHICS),
        ),
        "held": None,
        "memory_used": 97 * GIB,
        "memory_foreign": 97 * GIB,
        "handover": HandoverView(
            at=0.0, evidence="memory", exit=0.012, kill=0.001, memory_back=0.049
        ),
    },
    {
        "health": GpuHealth.THROTTLED,
        "multiplier": 0.5,
        "temperature_c": 86,
        "memory_used": 118 * GIB,
        "memory_foreign": 30 * GIB,
        "held": 87 * GIB,
        "allocated_processes": (GpuProcess(pid=50177, name="vllm", user="ben", memory=30 * GIB),),
    },
    {
        "stressor": "STOPPED",
        "admin": "RESERVED",
        "rule": "reserved",
        "reason": "reserved",
        "reservation": "7c2e406a",
        "held": None,
        "memory_used": 0,
        "memory_foreign": 0,
    },
    {
        "stressor": "STOPPED",
        "admin": "PAUSED",
        "rule": "paused",
        "reason": "paused",
        "held": None,
        "memory_used": 0,
        "memory_foreign": 0,
    },
    {"findings": 2, "last_finding": "result of gemm"},
    {
        "stressor": "STOPPED",
        "occupancy": "UNKNOWN",
        "rule": "unknown",
        "reason": "the driver did not answer for 6 s",
        "held": None,
        "memory_used": None,
    },
)
#: The duration of each of these states, in seconds.
SINCE_S = (5200, 5188, 140, 3300, 600, 5100, 3900, 30)
#: Load, temperature in degrees Celsius and power in watts of an idle and a busy GPU.
_COLD, _WARM = (0.0, 33, 84.0), (0.98, 64, 655.0)


@dataclass
class ExampleNode(FakeSupervisor):
    """A fake supervisor of ``count`` GPUs."""

    count: int = 16

    def __post_init__(self) -> None:
        """Create the GPUs and their reservation."""
        views = [gpu(number) for number in range(self.count)]
        self.gpus = {view.uuid: view for view in views}
        uuids = tuple(view.uuid for view in views if view.reservation)
        self.reservations["7c2e406a"] = Reservation(
            id="7c2e406a",
            gpus=uuids,
            count=len(uuids),
            reason="training run of anna",
            by=Caller(via="unix", uid=1000),
            since=time.monotonic() - 600,
            until=time.monotonic() + 6600,
        )

    def host(self) -> HostView:
        """Build the view of the host with all GPUs."""
        return replace(super().host(), gpus=tuple(self.gpus))


def uuid(number: int) -> str:
    """Return the UUID of a GPU."""
    return f"GPU-{number:08x}-0000-4000-8000-{number:012x}"


def gpu(number: int) -> GpuView:
    """Build the view of one GPU; states rotate by number."""
    now = time.monotonic()
    chosen = _STATES[number % len(_STATES)]
    is_occupied = chosen.get("stressor") is None
    load, heat, power = _WARM if is_occupied or chosen.get("processes") else _COLD
    heat = chosen.get("temperature_c", heat + number % 5)
    power += 7 * (number % 4)
    known = chosen.get("occupancy") != "UNKNOWN"
    telemetry = Telemetry(
        at=now,
        utilization=load,
        temperature_c=heat,
        power_w=power,
        power_limit_w=700.0,
        sm_clock_mhz=1980,
        slowdown_c=87,
    )
    fields = {
        "uuid": uuid(number),
        "index": number,
        "pci_bus_id": f"00000000:{number + 1:02X}:00.0",
        "memory_total": TOTAL,
        "memory_used": 127 * GIB,
        "memory_foreign": 0,
        "held": 126 * GIB,
        "processes": (),
        "handover": None,
        "since": now - SINCE_S[number % len(_STATES)],
        "until": now + 6600 if chosen.get("admin") else None,
        "workload": "gemm",
        "share": 1.0 if is_occupied else None,
        "flops_per_s": 6.91e14 if is_occupied else None,
        "pid": 47000 + 13 * number if is_occupied else None,
        "verified": VerifiedWork(
            counts=VerifiedCounts(
                seconds=3600 * (212.4 + 31 * number),
                checks=1_834_112 + 31_337 * number,
                errors=3 if chosen.get("findings") else 0,
                findings=chosen.get("findings", 0),
            ),
            at=now - 60 * number,
            workload="gemm",
        ),
        "health": GpuHealth.OPTIMAL,
        "telemetry": telemetry if known else None,
        "temperature_c": heat if known else None,
        "power_w": power if known else None,
        **chosen,
    }
    if fields["handover"] is not None:
        fields["handover"] = replace(fields["handover"], at=fields["since"])
    return replace(used_gpu(0), **fields)
