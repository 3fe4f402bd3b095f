"""The last samples of each GPU and process, from which the graphs and shares are made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from sentinel.cli.display.gpu_table import graph
from sentinel.cli.display.process_table import GpuJob
from sentinel.client import GpuStatus
from sentinel.host.processes.procfs import read_usage

#: Samples of each GPU, which fill the details of a wide screen.
MAX_SAMPLES = 240


class Samples:
    """The last samples of one GPU, oldest first; None is unknown."""

    def __init__(self) -> None:
        self.load: deque[float | None] = deque(maxlen=MAX_SAMPLES)
        self.power_w: deque[float | None] = deque(maxlen=MAX_SAMPLES)
        self.temperature_c: deque[float | None] = deque(maxlen=MAX_SAMPLES)
        self.memory: deque[float | None] = deque(maxlen=MAX_SAMPLES)

    def add(self, gpu: GpuStatus) -> None:
        """Add a sample."""
        self.load.append(gpu.utilization)
        self.power_w.append(gpu.power_w)
        self.temperature_c.append(gpu.temperature_c)
        used = gpu.memory_used
        self.memory.append(None if used is None else used / gpu.memory_total)

    def short_graph(self, width: int) -> str:
        """Return a graph of the load, or of the power if the load is unknown."""
        known = any(value is not None for value in self.load)
        if known:
            return graph(list(self.load)[-width:], 1.0)
        return graph(list(self.power_w)[-width:], highest(self.power_w))


def highest(values: Iterable[float | None]) -> float:
    """Return the highest known value, or 1."""
    return max((value for value in values if value is not None), default=1.0)


@dataclass(frozen=True)
class Usage:
    """What a process uses of the host; None is unknown."""

    #: Of one core, over the time since the last look.
    processor_share: float | None
    resident_bytes: int


class ProcessMeter:
    """Measures the processor time of processes between two looks."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, float]] = {}

    def measure(self, jobs: Iterable[GpuJob], now: float) -> dict[int, Usage]:
        """Read the usage of the processes that /proc of this host has, by PID.

        Args:
            jobs: The processes.
            now: The time, by the monotonic clock.
        """
        found: dict[int, Usage] = {}
        seen: dict[int, tuple[float, float]] = {}
        for pid in {job.pid for job in jobs if job.is_local}:
            usage = read_usage(pid)
            if usage is None:
                continue
            seen[pid] = (now, usage.processor)
            before = self._last.get(pid)
            share = None
            if before is not None and now > before[0] and usage.processor >= before[1]:
                share = (usage.processor - before[1]) / (now - before[0])
            found[pid] = Usage(share, usage.resident)
        self._last = seen
        return found
