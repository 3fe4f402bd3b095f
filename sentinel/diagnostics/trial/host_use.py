"""Measure what a stressor takes of the host: CPU time and memory."""

from __future__ import annotations

import contextlib

import psutil

from sentinel.diagnostics.trial.measurement import HostUse


class HostMeter:
    """Measures one process between its first and its last sample, and all its threads.

    A process that has ended keeps its last sample; one that started other programs counts alone.
    """

    def __init__(self) -> None:
        self._process: psutil.Process | None = None
        self._first: tuple[float, float] | None = None
        self._last: tuple[float, float] | None = None
        self._memory = 0

    def sample(self, pid: int, now: float) -> None:
        """Sample the process ``pid`` at the monotonic time ``now``."""
        with contextlib.suppress(psutil.Error):
            if self._process is None or self._process.pid != pid:
                self._process, self._first = psutil.Process(pid), None
            with self._process.oneshot():
                times, memory = self._process.cpu_times(), self._process.memory_info()
            taken = (now, times.user + times.system)
            self._first, self._last = self._first or taken, taken
            self._memory = max(self._memory, memory.rss)

    def result(self) -> HostUse | None:
        """Compute the use of the host; None without two samples."""
        if self._first is None or self._last is None or self._last[0] <= self._first[0]:
            return None
        cores = (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])
        return HostUse(cores=max(0.0, cores), memory=self._memory)
