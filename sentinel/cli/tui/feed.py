"""Feed the screen of ``sentinel top``: status, events, samples and use of processes."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sentinel.cli.display.gpu_table import GpuJob, graph, jobs
from sentinel.cli.display.log_lines import log_line
from sentinel.cli.options.command_options import only
from sentinel.client import Client, EventInfo, GpuStatus, Status
from sentinel.errors import SentinelError
from sentinel.host.procfs import read_usage

#: The samples of each GPU, which fill the details of a wide screen.
MAX_SAMPLES = 240
#: The pause before the events are requested again after an error.
RETRY_S = 5.0
#: The newest events before the first live one that are shown.
_PAST_EVENTS = 200


class SampleHistory:
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
class HostUsage:
    """What a process uses of the host; None is unknown."""

    #: Of one core, over the time since the last look.
    processor_share: float | None
    resident_bytes: int


class ProcessMeter:
    """Measures the processor time of processes between two looks."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, float]] = {}

    def measure(self, jobs: Iterable[GpuJob], now: float) -> dict[int, HostUsage]:
        """Read the usage of the processes that /proc of this host has, by PID.

        Args:
            jobs: The processes.
            now: The time, by the monotonic clock.
        """
        found: dict[int, HostUsage] = {}
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
            found[pid] = HostUsage(share, usage.resident)
        self._last = seen
        return found


@dataclass(frozen=True)
class Look:
    """What one request found."""

    status: Status
    jobs: list[GpuJob]
    #: By PID.
    usage: dict[int, HostUsage]


@dataclass(frozen=True)
class ShownEvent:
    """An event as a line in colour."""

    line: str
    gpu: str | None
    is_handover: bool


class Feed:
    """Requests what is shown, in threads, so that no key waits for the daemon.

    Args:
        client: The client of the daemon.
        gpus: The selectors of the GPUs; the default is all.
        every: The pause between two requests, in seconds.
        on_look: Called with each status, in a thread.
        on_error: Called with each error, in a thread.
        on_events: Called with new events, oldest first, in a thread.
    """

    def __init__(
        self,
        client: Client,
        gpus: tuple[str, ...],
        every: float,
        *,
        on_look: Callable[[Look], None],
        on_error: Callable[[SentinelError], None],
        on_events: Callable[[list[ShownEvent]], None],
    ) -> None:
        self._client = client
        self._gpus = gpus
        self._every = every
        self._on_look = on_look
        self._on_error = on_error
        self._on_events = on_events
        self._meter = ProcessMeter()
        self._stopped = threading.Event()
        self._refresh = threading.Event()

    def start(self) -> None:
        """Start both threads."""
        threading.Thread(target=self._poll, name="poll", daemon=True).start()
        threading.Thread(target=self._follow, name="events", daemon=True).start()

    def stop(self) -> None:
        """Let both threads end; the process does not wait for them."""
        self._stopped.set()
        self._refresh.set()

    def refresh(self) -> None:
        """Request the status at once."""
        self._refresh.set()

    def look(self, status: Status) -> Look:
        """Add the processes, and what they use, to a status."""
        shown = only(status, self._gpus)
        found = jobs(shown.gpus, local=not self._client.address.host)
        return Look(shown, found, self._meter.measure(found, time.monotonic()))

    def _poll(self) -> None:
        while not self._stopped.is_set():
            try:
                look = self.look(self._client.status())
            except SentinelError as error:
                self._on_error(error)
            else:
                self._on_look(look)
            self._refresh.wait(self._every)
            self._refresh.clear()

    def _follow(self) -> None:
        """Follow the events; a daemon that has none to give is asked again later."""
        since, daemon = 0, None
        while not self._stopped.is_set():
            try:
                with self._client.events(since, daemon) as stream:
                    stream.open()
                    since = max(since, (stream.newest or 0) - _PAST_EVENTS)
                    daemon = stream.daemon
                    for event in stream:
                        if self._stopped.is_set():
                            return
                        number = event.id or 0
                        if number >= since:
                            self._show(event)
                            since = number
            except SentinelError:
                pass
            self._stopped.wait(RETRY_S)

    def _show(self, event: EventInfo) -> None:
        line = log_line(json.dumps(event.fields), colour=True)
        if line is not None and event.name != "gpu.status":
            gpu = event.fields.get("gpu")
            self._on_events([ShownEvent(line, gpu, event.name == "gpu.handed_over")])
