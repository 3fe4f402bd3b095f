"""Record what a burn-in's GPUs report: readings and work as samples, in a file of their own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from sentinel.core.actions import Event
from sentinel.core.observation import ChildFacts, ProbeFacts
from sentinel.diagnostics.trial.recorder import Recorded
from sentinel.protocol.gpu import Reading
from sentinel.protocol.stressor import LinkMeasured, Progress, ReferenceChecksum
from sentinel.supervisor.event_log import EventLog
from sentinel.supervisor.ports import Parts, Probe, Spawner

#: The names of the samples in the file.
TELEMETRY, WORK = "telemetry", "work"
#: A stressor has ended.
END = "end"
#: An XID, with its GPU if it is NVML's and without if it is the kernel's; and from when until when
#: those of NVML were watched without a break.
XID, WATCHED = "xid", "xids_watched"
#: A stressor has computed a reference.
CHECKSUM = "checksum"
#: What was measured of a link.
LINK = "link"
#: The last sample of a run.
LAST = "last"

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
)

#: A plan up to this many seconds is sampled as often as it is read, once a second; a longer one so
#: much more rarely.
_SECONDS_FOR_EVERY_SAMPLE = 7200.0

#: The watch of XIDs goes on for so long after it was confirmed, in seconds: twice the interval and
#: a busy host.
_CONFIRMED_S = 6.0


def interval(seconds: float) -> float:
    """Compute the seconds between two samples of a plan with so many seconds of work."""
    return max(0.5, seconds / _SECONDS_FOR_EVERY_SAMPLE)


class Recorder:
    """Records samples in the loop's thread; the log's thread writes them.

    Args:
        log: Takes the samples as events.
        seconds: The duration of the plan's work.
    """

    def __init__(self, log: EventLog, seconds: float) -> None:
        self._log = log
        self._every = interval(seconds)
        self._read_at: dict[str, float] = {}
        self._work: dict[str, Progress] = {}
        self._pids: dict[str, int] = {}
        self._running: set[str] = set()
        #: By UUID: since when and until when NVML's XIDs are known to be complete.
        self._watched: dict[str, tuple[float, float]] = {}

    def around(self, parts: Parts) -> Parts:
        """Wrap the parts of a supervisor so that what they bring is recorded."""
        return replace(
            parts,
            probe=cast("Probe", Recorded(parts.probe, self._take_probe)),
            spawner=cast("Spawner", Recorded(parts.spawner, self._take_children)),
        )

    def finish(self) -> None:
        """Record what is known at the end only."""
        now = time.monotonic()
        for uuid, (since, at) in self._watched.items():
            if now - at <= _CONFIRMED_S:
                self._watched[uuid] = since, now
            self._record_watched(uuid)

    def _take_probe(
        self, found: tuple[ProbeFacts | None, dict[str, Reading]]
    ) -> tuple[ProbeFacts | None, dict[str, Reading]]:
        if found[0] is not None:
            self._take_xids(found[0])
        for uuid, reading in found[1].items():
            if uuid not in self._running:  # a wait may be long, and says nothing of the GPU
                continue
            telemetry = reading.telemetry
            due = self._read_at.get(uuid, float("-inf")) + self._every
            if telemetry is not None and reading.at >= due:
                self._read_at[uuid] = reading.at
                fields = {
                    "temperature_c": reading.temperature,
                    "power_w": reading.power,
                    "sm_clock_mhz": reading.sm_clock,
                    **{name: getattr(telemetry, name) for name in TELEMETRY_FIELDS},
                }
                self._record(TELEMETRY, reading.at, uuid, fields)
        return found

    def _take_xids(self, facts: ProbeFacts) -> None:
        """Record the XIDs of NVML; a new beginning of the watch ends the one before."""
        for one in facts.xids:
            fields = {"number": one.number, "count": one.repeats or 1, "last_at": one.last_at}
            self._record(XID, one.at, one.uuid, fields)
        if facts.xids_watched is None:
            return
        for gpu in facts.xids_watched.gpus:
            if self._watched.get(gpu.uuid, (gpu.since,))[0] != gpu.since:
                self._record_watched(gpu.uuid)
            self._watched[gpu.uuid] = gpu.since, facts.xids_watched.at

    def _record_watched(self, uuid: str) -> None:
        first, last = self._watched[uuid]
        self._record(WATCHED, last, uuid, {"first": first, "last": last})

    def _take_children(self, found: dict[str, ChildFacts]) -> dict[str, ChildFacts]:
        for uuid, facts in found.items():
            if facts.child is not None:
                self._pids[uuid] = facts.child.pid
                self._running.add(uuid)
            for message in facts.messages:
                if isinstance(message, Progress):
                    self._take_work(uuid, message)
                elif isinstance(message, ReferenceChecksum):
                    self._record(CHECKSUM, time.monotonic(), uuid, vars(message))
                elif isinstance(message, LinkMeasured):
                    self._record(LINK, time.monotonic(), uuid, vars(message))
            if facts.exit is not None:
                self._running.discard(uuid)
                self._flush(uuid)
                self._record(END, facts.exit.at, uuid, {"pid": self._pids.get(uuid, 0)})
        return found

    def _take_work(self, uuid: str, report: Progress) -> None:
        """Add a report to those of its interval."""
        before = self._work.get(uuid)
        whole = self._work[uuid] = report if before is None else _sum(before, report)
        if whole.seconds >= self._every:
            self._flush(uuid)

    def _flush(self, uuid: str) -> None:
        """Record the reports of an interval."""
        report = self._work.pop(uuid, None)
        if report is not None:
            fields = {key: getattr(report, key) for key in WORK_FIELDS}
            self._record(WORK, time.monotonic(), uuid, fields)

    def _record(self, name: str, at: float, uuid: str, fields: Mapping[str, Any]) -> None:
        self._log.publish([sample(name, at, uuid, fields)])


def sample(
    name: str, at: float, gpu: str | None = None, fields: Mapping[str, Any] | None = None
) -> Event:
    """Build a sample, in the form of an event for the same writer."""
    return Event(name=name, at=at, gpu=gpu, fields=fields or {})


WORK_FIELDS = ("seconds", "iterations", "flops", "bytes", "checks", "errors")


def _sum(first: Progress, second: Progress) -> Progress:
    """Add two reports of the same stressor."""
    fields = {key: getattr(first, key) + getattr(second, key) for key in WORK_FIELDS}
    return Progress(**fields)
