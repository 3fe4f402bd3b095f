"""What is recorded while a burn-in runs: readings, work, measurements, and counters at the end."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sentinel.burnin.kernel_faults import Distinct
from sentinel.burnin.record import (
    CHECKSUM,
    END,
    KERNEL_FAULT,
    LAST,
    LINK,
    LOST,
    SELFTEST,
    TELEMETRY,
    UNIT,
    WATCHED,
    WORK,
    XID,
)
from sentinel.burnin.xids import LogParser, XidEvent
from sentinel.client.client import Client
from sentinel.diagnostics.counters import CountersResult
from sentinel.diagnostics.kernel_log import KernelLog
from sentinel.errors import SentinelError
from sentinel.host.event_lines import Sink
from sentinel.protocol.api_types import BurninProgress, GpuStatus
from sentinel.protocol.counters import Counters
from sentinel.protocol.events import Event

#: The samples that come as events of the daemon, by their kind.
MEASURED = {
    "Failed": "failed",
    "LinkMeasured": LINK,
    "ReferenceChecksum": CHECKSUM,
    "SelftestDone": "selftest_done",
    "SelftestResult": SELFTEST,
    "StressorExit": END,
    "UnitExercised": UNIT,
    "XidsWatched": WATCHED,
}

#: The fields of a Telemetry that a report uses.
TELEMETRY_FIELDS = (
    "memory_temperature_c",
    "temperature_margin_c",
    "memory_clock_mhz",
    "power_limit_w",
    "reasons",
    "pcie_generation",
    "pcie_width",
    "utilization",
    "ecc_corrected_total",
)
WORK_FIELDS = ("seconds", "iterations", "flops", "bytes", "checks", "errors")

#: Plans up to this many seconds: every reading is a sample. Longer ones: proportionally fewer.
_SECONDS_FOR_EVERY_SAMPLE = 7200.0
#: How often a daemon reads telemetry, in seconds.
_TELEMETRY_S = 1.0
#: How long a thread may take to end, in seconds.
_END_TIMEOUT_S = 5.0

#: The event after which a GPU does no more of a run.
_ENDED = "burnin.ended"


def sample(
    name: str, at: float, gpu: str | None = None, fields: Mapping[str, Any] | None = None
) -> Event:
    """Build a sample, in the form of an event for the same writer."""
    return Event(name=name, at=at, gpu=gpu, fields=fields or {})


def measured(fields: Mapping[str, Any]) -> Event:
    """Convert an event ``burnin.measured`` into a sample, by the fields of the event."""
    return sample(MEASURED[fields["kind"]], fields["at"], fields["gpu"], fields["values"])


class Samples:
    """Writes samples from several threads, and records how many could not be written.

    The XIDs and other faults that the kernel has logged since the sample before are written before
    each. A fault without an XID may be logged hundreds of times a second: it is written once.

    Args:
        write: Takes the samples.
        kernel: The kernel's log.
        written: How many samples the file has already.
    """

    def __init__(self, write: Sink, kernel: KernelLog, written: int = 0) -> None:
        self._written = written
        self._sink = write
        self._kernel = kernel
        self._log = LogParser()
        self._faults = Distinct()
        self._lock = threading.Lock()
        self._dropped = 0

    def write(self, event: Event) -> None:
        """Write a sample; one that cannot be written is counted in the next one that can."""
        with self._lock:
            for record in self._kernel.read():
                for found in self._log.parse(record.text, record.at):
                    if isinstance(found, XidEvent):
                        name, what = XID, "an XID"
                    elif self._faults.is_new(found):
                        name, what = KERNEL_FAULT, "a fault"
                    else:
                        continue
                    if not self._write(sample(name, found.at, fields=vars(found))):
                        self._kernel.error = f"{what} could not be recorded"
            if event.name == LAST:
                # A file from which some were taken away has fewer.
                event = replace(event, fields={**event.fields, "count": self._written})
            self._write(event)

    def _write(self, event: Event) -> bool:
        try:
            if self._dropped:
                self._sink(sample(LOST, event.at, fields={"events": self._dropped}))
                self._written += 1
                self._dropped = 0
            self._sink(event)
            self._written += 1
        except (OSError, ValueError):
            self._dropped += 1
            return False
        return True


class Sampler:
    """A thread that records the readings and the work of GPUs from the daemon's status.

    Args:
        client: The client of the daemon.
        gpus: The UUIDs of the GPUs.
        seconds: The duration of the plan's work.
        write: Takes the samples.
    """

    def __init__(
        self, client: Client, gpus: Sequence[str], seconds: float, write: Callable[[Event], None]
    ) -> None:
        self._client = client
        self._gpus = gpus
        self._every = max(_TELEMETRY_S, seconds / _SECONDS_FOR_EVERY_SAMPLE)
        self._write = write
        self._last: dict[str, GpuStatus] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._record, name="samples", daemon=True)

    def start(self) -> None:
        """Start to record."""
        self._thread.start()

    def stop(self) -> None:
        """Record no more."""
        self._stopping.set()
        self._thread.join(_END_TIMEOUT_S)

    def _record(self) -> None:
        while not self._stopping.wait(self._every):
            try:
                gpus = self._client.status().gpus
            except SentinelError:
                continue  # the stream of events tells whether the daemon is gone
            now = time.monotonic()
            for gpu in gpus:
                if gpu.uuid in self._gpus:
                    for found in samples_of(self._last.get(gpu.uuid), gpu, now):
                        self._write(found)
                    self._last[gpu.uuid] = gpu


def samples_of(before: GpuStatus | None, gpu: GpuStatus, now: float) -> Iterator[Event]:
    """Yield what a status adds to the one before: readings and work.

    Args:
        before: The last status of the same GPU, or None.
        gpu: The status.
        now: The time of it.
    """
    if gpu.pid is not None and gpu.telemetry is not None and gpu.read_s is not None:
        fields = {
            "temperature_c": gpu.temperature_c,
            "power_w": gpu.power_w,
            "sm_clock_mhz": gpu.sm_clock_mhz,
            **{name: getattr(gpu.telemetry, name) for name in TELEMETRY_FIELDS},
        }
        yield sample(TELEMETRY, now - gpu.read_s, gpu.uuid, fields)
    work = None if before is None else _work(before.burnin, gpu.burnin)
    if work is not None:
        yield sample(WORK, now, gpu.uuid, work)


def _work(before: BurninProgress | None, after: BurninProgress | None) -> dict[str, float] | None:
    """Compute the work between two states of one phase; of two phases, it belongs to neither."""
    if before is None or after is None or before.number != after.number:
        return None
    work = {name: getattr(after, name) - getattr(before, name) for name in WORK_FIELDS}
    return work if work["seconds"] > 0 else None


# --- counters at the end of each GPU ---------------------------------------------------------


class CountersAtEnd:
    """A thread that reads the counters of GPUs that are done, one after the other.

    What comes after a GPU was done, such as the use by others, is so not taken for its own.

    Args:
        read: Reads the counters of one GPU, given its UUID; it may take a minute.
    """

    def __init__(self, read: Callable[[str], CountersResult]) -> None:
        self._read = read
        self._found: dict[str, Counters] = {}
        self._done: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._stuck = False
        self._thread = threading.Thread(target=self._work, name="counters", daemon=True)
        self._thread.start()

    def take(self, event: str, uuid: str | None) -> None:
        """Take an event of the run, by its name and GPU."""
        if event == _ENDED and uuid is not None:
            self._done.put(uuid)

    def close(self, last: Callable[[], CountersResult]) -> CountersResult:
        """Return the counters of all GPUs at their ends.

        Args:
            last: Reads those of all GPUs at the end of the run; it stands for each GPU whose own
                were not read yet.
        """
        self._closing.set()
        self._done.put(None)
        self._thread.join()
        return merged(last(), self._found, stuck=self._stuck)

    def _work(self) -> None:
        while (uuid := self._done.get()) is not None and not self._closing.is_set():
            result = self._read(uuid)
            self._stuck = self._stuck or result.stuck
            for counter in result.counters:
                if counter.uuid == uuid and counter.lost is None:
                    self._found[uuid] = counter


def merged(
    last: CountersResult, at_end: Mapping[str, Counters], *, stuck: bool = False
) -> CountersResult:
    """Replace the last counters of GPUs by those that were read when each was done.

    A GPU that is lost by now has its last counters: that is a fault in any case.
    """
    counters = tuple(
        at_end.get(counter.uuid, counter) if counter.lost is None else counter
        for counter in last.counters
    )
    return replace(last, counters=counters, stuck=last.stuck or stuck)
