"""What was recorded of a burn-in: events and samples, by GPU and phase. Pure.

Times are seconds of the monotonic clock of the host, as recorded.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import Any

from sentinel.burnin.kernel_faults import KernelFault, distinct
from sentinel.burnin.xids import NO_DETAILS, XidEvent, joined, missed
from sentinel.config.plan import Phase, Plan
from sentinel.core.child_facts import BEFORE_EXIT_S
from sentinel.protocol.counters import Counters
from sentinel.protocol.gpu_names import is_same_device
from sentinel.protocol.stressor import LinkPart
from sentinel.protocol.xids import OwnEnd

#: The names of the samples: readings, and the work of an interval.
TELEMETRY, WORK = "telemetry", "work"
#: A stressor has ended.
END = "end"
#: An XID of the kernel's log; and from when until when those of NVML were watched without a break.
XID, WATCHED = "xid", "xids_watched"
#: A fault of the kernel's log beside XIDs.
KERNEL_FAULT = "kernel_fault"
#: The samples of the kernel's log, with their fields.
_LOGGED: Mapping[str, tuple[type[XidEvent | KernelFault], tuple[str, ...]]] = {
    XID: (XidEvent, ("number", "pci_bus_id", "at", "pid", "text")),
    KERNEL_FAULT: (
        KernelFault,
        ("kind", "device", "reporter", "driver", "at", "text", "number"),
    ),
}
#: A stressor has computed a reference.
CHECKSUM = "checksum"
#: What was measured of a link.
LINK = "link"
#: What was checked of a unit of the GPU.
UNIT = "unit"
#: How many faults that a stressor has injected were found.
SELFTEST = "selftest"
#: The last sample of a run.
LAST = "last"
#: Counts samples, or events, that are lost.
LOST = "log.dropped"

#: Events that disturb a plan also where they end no stretch that counts.
_DISTURBANCES = ("gpu.yielding", "gpu.unknown", "gpu.unwatched")

#: Events that end the load of a stressor.
_ENDS = ("stressor.stopped", "stressor.failed", "stressor.fatal", "gpu.yielding")

#: What ends a stretch is reported at most so long before its end, in seconds.
_CAUSED_WITHIN_S = 10.0

#: The event of the daemon with which a run begins, or goes on.
STARTED = "burnin.run_started"

#: Events that end a stretch, and say what ended it.
INTERRUPTIONS = {
    "gpu.yielding": "a foreign process",
    "gpu.unknown": "the GPU could not be read",
    "gpu.unwatched": "its memory was not watched",
    "gpu.paused": "a pause",
    "gpu.reserved": "a reservation",
    "burnin.ungrouped": "another GPU left its group",
    "stressor.failed": "the stressor failed",
    "stressor.fatal": "the stressor failed",
}


class Stretches:
    """Stretches of time, both ends included; they may overlap.

    Args:
        stretches: The beginning and the end of each.
    """

    def __init__(self, stretches: Iterable[tuple[float, float]]) -> None:
        self._firsts: list[float] = []
        #: The latest end of each stretch and of those before it.
        self._lasts: list[float] = []
        for first, last in sorted(stretches):
            self._firsts.append(first)
            self._lasts.append(max(last, self._lasts[-1]) if self._lasts else last)

    def __contains__(self, moment: float) -> bool:
        """Check whether a moment is in one of them."""
        number = bisect_right(self._firsts, moment)
        return number > 0 and moment <= self._lasts[number - 1]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One reading, or the work of one interval."""

    at: float
    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Checksum:
    """The checksum of a reference that a GPU has computed."""

    #: Everything that determines the bits: the model, the versions, the shape and the seed.
    key: str
    checksum: str
    #: The checksum on record at that time; None if there was none.
    stored: str | None


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """The end of a stretch."""

    at: float
    phase: str
    cause: str
    #: Work of the stretch that counts, in seconds.
    stretch_s: float


@dataclass(kw_only=True)
class PhaseRecord:
    """What one GPU did of one phase, with everything recorded meanwhile."""

    phase: Phase
    #: The beginnings and the ends of the times in which it was due; the last end may be missing.
    spans: list[tuple[float, float | None]] = field(default_factory=list)
    #: The fields of ``burnin.phase_ended``; empty if the phase was never reached.
    work: Mapping[str, Any] = field(default_factory=dict)
    #: The beginnings and the ends of the stretches that count.
    stretches: list[tuple[float, float]] = field(default_factory=list)
    telemetry: list[Sample] = field(default_factory=list)
    reports: list[Sample] = field(default_factory=list)
    #: What was measured of links.
    links: list[Sample] = field(default_factory=list)
    #: What was checked of units of the GPU.
    units: list[Sample] = field(default_factory=list)
    #: When its first stressor was ready; work before that is of the former phase.
    ready: float = float("inf")

    @property
    def began(self) -> float | None:
        """When it was due first."""
        return self.spans[0][0] if self.spans else None

    @property
    def ended(self) -> float | None:
        """When it was over last; None before."""
        return self.spans[-1][1] if self.spans else None

    def has(self, at: float) -> bool:
        """Check whether it was due at a time."""
        return any(first <= at and (last is None or at <= last) for first, last in self.spans)

    @property
    def done(self) -> float:
        """The seconds that count towards the quota."""
        return float(self.work.get("longest" if self.phase.in_one_stretch else "seconds", 0.0))

    @property
    def passes(self) -> int:
        """How often every pattern has covered the memory."""
        return int(self.work.get("passes", 0))

    @property
    def complete(self) -> bool:
        """Whether the whole quota is done."""
        return self.done >= self.phase.seconds and self.passes >= self.phase.passes

    def judged(self, samples: Iterable[Sample]) -> list[Sample]:
        """Select the samples of the stretches that count."""
        counting = Stretches(self.stretches)
        return [sample for sample in samples if sample.at in counting]

    def median(self, name: str) -> float | None:
        """Compute the median of a reading over the stretches that count."""
        values = self.readings(name)
        return statistics.median(values) if values else None

    def readings(self, name: str) -> list[float]:
        """Select the known values of a reading over the stretches that count; 0 is one."""
        values = (sample.values.get(name) for sample in self.judged(self.telemetry))
        return [float(value) for value in values if value is not None]

    def link_rates(self) -> dict[str, list[float]]:
        """Select the rates of each link, in bytes a second, by the name of the measurement."""
        found: dict[str, list[float]] = {}
        # Fewer GPUs sum faster: of a group that began again without some, no rate counts.
        largest = max((sample.values["size"] for sample in self.links), default=0)
        for sample in self.links:
            part, peer, rate = (sample.values[name] for name in ("part", "peer", "rate"))
            smaller = part == LinkPart.ALL_REDUCE and sample.values["size"] < largest
            if rate is not None and not smaller:
                which = part if peer is None else f"{part}_{peer}"
                found.setdefault(f"{which}_bytes_per_s", []).append(float(rate))
        return found

    def exercised(self) -> list[dict[str, Any]]:
        """Sum what was checked of each unit: its name, checks, wrong, and why it was not.

        A unit that no stressor has come to is missing. One with a reason in ``not_exercised``
        cannot be exercised on this GPU, and has no checks.
        """
        found: dict[str, dict[str, Any]] = {}
        for sample in self.units:
            name = sample.values["unit"]
            new = {"unit": name, "checks": 0, "wrong": 0, "not_exercised": None}
            unit = found.setdefault(name, new)
            unit["checks"] += sample.values["checks"]
            unit["wrong"] += sample.values["wrong"]
            unit["not_exercised"] = sample.values["not_exercised"]
        return list(found.values())

    def rates(self, unit: str) -> list[float]:
        """Compute the rate of each report in the stretches that count: ``flops`` or ``bytes``."""
        return [
            s.values[unit] / s.values["seconds"]
            for s in self.judged(self.reports)
            if s.values["seconds"] > 0 and (s.values[unit] or 0) > 0
        ]


@dataclass(kw_only=True)
class GpuRecord:
    """Everything recorded of one GPU."""

    uuid: str
    index: int
    phases: list[PhaseRecord]
    before: Counters | None = None
    after: Counters | None = None
    #: The counters at the end of the part before each resumption, None if it was killed, and those
    #: with which the run went on.
    resumed: list[tuple[Counters | None, Counters | None]] = field(default_factory=list)
    events: list[Mapping[str, Any]] = field(default_factory=list)
    interruptions: list[Interruption] = field(default_factory=list)
    #: The stressors that have ended.
    ends: list[OwnEnd] = field(default_factory=list)
    #: The checksums of its references; the same one again after each start.
    checksums: list[Checksum] = field(default_factory=list)
    #: What its stressors have found of the faults that they injected.
    selftests: list[Sample] = field(default_factory=list)
    #: The XIDs of all GPUs of the node, as the kernel logged them.
    xids: list[XidEvent] = field(default_factory=list)
    #: The other faults of the kernel's log, of all devices.
    faults: list[KernelFault] = field(default_factory=list)
    #: The XIDs of this GPU, as NVML delivered them.
    nvml_xids: list[XidEvent] = field(default_factory=list)
    #: The times in which NVML's XIDs were watched without a break.
    xids_watched: list[tuple[float, float]] = field(default_factory=list)
    #: The samples end as those of a run that came to its end.
    closed: bool = False
    #: A part of the run was killed, and its last samples are missing.
    cut: bool = False
    #: How many parts the run has.
    parts: int = 1
    #: The seconds of work that samples have, also in a part that was killed within a phase.
    sampled_s: float = 0.0
    #: Events and samples of the run that could not be recorded.
    dropped: int = 0
    #: Why it does no more phases; None if it has done all, empty if it was never said.
    ended: str | None = ""
    #: The times after that in which a daemon did other work on it.
    elsewhere: list[tuple[float, float]] = field(default_factory=list)

    @property
    def model(self) -> str:
        """The name of its model; empty if it is not known."""
        return self.before.name if self.before is not None else ""

    def named(self, *names: str) -> list[Mapping[str, Any]]:
        """Select events by name."""
        return [event for event in self.events if event["event"] in names]

    @property
    def cut_short(self) -> str | None:
        """Why it did not come to the end of its plan; None if each phase is done or given up."""
        if self.unfinished is None:
            return None
        return self.ended or "its record ends before its plan"

    @property
    def unfinished(self) -> PhaseRecord | None:
        """The first phase that is neither done nor given up, or None."""
        left = (p for p in self.phases if not p.complete and p.work.get("given_up") is None)
        return next(left, None)

    @property
    def is_unkillable(self) -> bool:
        """Whether its last stressor was killed, and did not end."""
        ended = max((end.at + BEFORE_EXIT_S for end in self.ends), default=0.0)
        return any(event["at"] > ended for event in self.named("stressor.unkillable"))

    def own_xids(self) -> list[XidEvent]:
        """Join the XIDs of this GPU, of both sources; lines that repeat one are one."""
        address = self.before.pci_bus_id if self.before is not None else None
        kernel = [xid for xid in self.xids if is_same_device(xid.pci_bus_id, address)]
        found = joined(kernel, self.nvml_xids)
        logged = [*distinct(xid for xid in found if xid.pci_bus_id)]
        return sorted([*logged, *(xid for xid in found if not xid.pci_bus_id)], key=lambda x: x.at)

    def missed_by_nvml(self) -> str | None:
        """Explain why NVML may have missed XIDs of this GPU, or return None."""
        if self.dropped:
            return "events were lost"
        if self.cut:
            return "a part of the run was cut off"
        last_event = max((float(event["at"]) for event in self.events), default=0.0)
        starts = [float(event["at"]) for event in self.named("stressor.starting")]
        needed = []
        for phase in self.phases:
            for first, end in phase.spans:
                last = last_event if end is None else end
                # Without a start, the stressor of the phase before goes on.
                started = min((at for at in starts if first <= at <= last), default=first)
                needed.append((started, last))
        return missed(needed, self.xids_watched)

    @property
    def telemetry(self) -> list[Sample]:
        """All readings of the GPU, in all phases."""
        return [sample for phase in self.phases for sample in phase.telemetry]

    def under_load(self, name: str = "at") -> Iterator[tuple[PhaseRecord, Sample, Sample]]:
        """Pair the readings of each stressor that have a value, with the phase of the later one.

        A GPU is sampled only while it has a stressor: what happens between the last reading of one
        and the first of the next may be the work of another process, and is left out.
        """
        # The first sample beside a stressor may be a reading from before its start: both count.
        changes = sorted(
            [float(event["at"]) for event in self.named("stressor.starting", *_ENDS)]
            + [end.at + BEFORE_EXIT_S for end in self.ends]
        )
        known = [
            (phase, sample)
            for phase in self.phases
            for sample in phase.telemetry
            if name == "at" or sample.values.get(name) is not None
        ]
        known.sort(key=lambda item: item[1].at)
        for (_, first), (phase, last) in pairwise(known):
            if bisect_right(changes, first.at) == bisect_right(changes, last.at):
                yield phase, first, last

    def loads(self) -> list[tuple[float, float]]:
        """Return the times of its stressors by their events, which samples do not cover."""
        found = []
        first = None
        for event in self.events:
            name, at = event["event"], float(event["at"])
            if name == "stressor.starting":
                first = at
            elif name in _ENDS and first is not None:
                found.append((first, at))
                first = None
        return found

    @property
    def links(self) -> list[Sample]:
        """Everything that was measured of the GPU's links."""
        return [sample for phase in self.phases for sample in phase.links]


def load(
    plan: Plan, events: Iterable[Mapping[str, Any]], samples: Iterable[Mapping[str, Any]]
) -> dict[str, GpuRecord]:
    """Build the record of each GPU, by its UUID.

    Args:
        plan: What was run.
        events: The events in the form of the log, in their order.
        samples: The recorded samples, in their order.
    """
    records: dict[str, GpuRecord] = {}
    dropped = parts = count = 0
    for count, event in enumerate(events, start=1):  # noqa: B007 - the number of all
        dropped += event["events"] if event["event"] == LOST else 0
        if event["event"] == STARTED:
            parts += 1
            for record in records.values():
                _take_resumption(record, float(event["at"]))
        _add_gpus(records, event, plan)
        if event.get("gpu") is not None:
            record = records[event["gpu"]]
            record.nvml_xids += _xids_of(event)
            if not _is_elsewhere(record, event):
                _take_event(record, event)
    logged: list[XidEvent | KernelFault] = []
    closed, begun = False, parts
    known = None
    for number, sample in enumerate(samples):
        closed = sample["event"] == LAST
        known = sample.get("event_count") if closed else None
        dropped += abs(number - sample.get("count", number)) if closed else 0
        parts -= closed
        dropped += sample["events"] if sample["event"] == LOST else 0
        if sample["event"] in _LOGGED:
            of, names = _LOGGED[sample["event"]]
            logged.append(of(**{name: sample[name] for name in names}))
        elif sample.get("gpu") in records:
            _take_sample(records[sample["gpu"]], sample)
    dropped += abs(count - (count if known is None else known))
    for record in records.values():
        record.xids = [event for event in logged if isinstance(event, XidEvent)]
        record.faults = [event for event in logged if isinstance(event, KernelFault)]
        record.dropped, record.closed = dropped, closed
        record.cut, record.parts = parts > 0, begun
    return records


def _add_gpus(records: dict[str, GpuRecord], event: Mapping[str, Any], plan: Plan) -> None:
    """Add the GPUs that an event names; the first event of a run names all of them."""
    named = event["gpus"] if event["event"] == STARTED else ()
    for gpu in [event] if event.get("gpu") is not None else named:
        uuid, index = gpu.get("gpu") or gpu["uuid"], gpu.get("index") or 0
        if uuid not in records:
            phases = [PhaseRecord(phase=phase) for phase in plan.phases]
            records[uuid] = GpuRecord(uuid=uuid, index=index, phases=phases)


def _is_elsewhere(record: GpuRecord, event: Mapping[str, Any]) -> bool:
    """Check whether an event is of other work of a daemon on a GPU that is done."""
    at = float(event["at"])
    if record.elsewhere and at < record.elsewhere[-1][1]:
        return True
    began = event["event"] in {"burnin.phase_started", "stressor.starting"}
    if began and record.ended != "":
        record.elsewhere.append((at, inf))
        return True
    return False


def _take_event(record: GpuRecord, event: Mapping[str, Any]) -> None:
    """Apply one event."""
    record.events.append(event)
    name, at = event["event"], float(event["at"])
    by_name = {phase.phase.name: phase for phase in record.phases}
    phase = by_name.get(event.get("phase", "")) or _current(record)
    match name:
        case "burnin.phase_started" if phase is not None:
            before = record.phases[max(0, record.phases.index(phase) - 1)]
            goes_on = before.ended == at and before.phase.workload == phase.phase.workload
            phase.ready = at if goes_on else phase.ready
            if goes_on and not phase.phase.in_one_stretch:  # the same stressor
                phase.stretches.append((at, at))
            phase.spans.append((at, None))
        case "burnin.warm" if phase is not None:
            phase.stretches.append((at, at))
        case "stressor.ready" if phase is not None:
            phase.ready = min(phase.ready, at)
            phase.stretches += [] if phase.phase.steady else [(at, at)]
        case _ if name in ("burnin.interrupted", *_DISTURBANCES) and phase is not None:
            _interrupt(record, phase, at, event.get("stretch_s", 0.0))
        case "burnin.phase_ended" if phase is not None:
            _end_stretch(phase, at)
            phase.work = event
            if phase.spans:
                phase.spans[-1] = (phase.spans[-1][0], at)
        case "gpu.busy" if record.interruptions:
            _name_newcomer(record, event)
        case "burnin.ended":
            record.ended = event["reason"]


def _xids_of(event: Mapping[str, Any]) -> list[XidEvent]:
    """Return what an event says of the XIDs that NVML delivered."""
    if event["event"] != "gpu.xid":
        return []
    xid = XidEvent(
        number=event["xid"],
        pci_bus_id="",
        at=event["reported_at"],
        pid=None,
        text=NO_DETAILS,
        count=event["repeats"] or 1,
        last_at=event["last_at"],
    )
    return [xid]


def _take_resumption(record: GpuRecord, at: float) -> None:
    """Add the cut before a resumption as an interruption, and end what a kill has left open."""
    unfinished = record.unfinished
    if unfinished is None or not record.events:
        return
    last = float(record.events[-1]["at"])
    interruption = Interruption(
        at=last,
        phase=unfinished.phase.name,
        cause=f"the run was cut short: {record.cut_short}",
        stretch_s=float(unfinished.work.get("stretch", 0.0)),
    )
    record.interruptions.append(interruption)
    record.ended = ""
    if record.elsewhere:
        record.elsewhere[-1] = (record.elsewhere[-1][0], at)
    for phase in record.phases:
        _end_stretch(phase, last)
        if phase.spans and phase.spans[-1][1] is None:
            phase.spans[-1] = (phase.spans[-1][0], last)


def _current(record: GpuRecord) -> PhaseRecord | None:
    """Find the phase that has begun and not ended."""
    open_ = [phase for phase in record.phases if phase.spans and phase.ended is None]
    return open_[-1] if open_ else None


def _end_stretch(phase: PhaseRecord, at: float) -> None:
    if phase.stretches and phase.stretches[-1][0] == phase.stretches[-1][1]:
        phase.stretches[-1] = (phase.stretches[-1][0], at)


def _interrupt(record: GpuRecord, phase: PhaseRecord, at: float, stretch_s: float) -> None:
    """Add an interruption; the end of a stretch completes that of the event that has caused it."""
    _end_stretch(phase, at)
    last = record.interruptions[-1] if record.interruptions else None
    interruption = Interruption(
        at=at, phase=phase.phase.name, cause=_cause(record, at), stretch_s=stretch_s
    )
    if (
        last is not None
        and (last.phase, last.stretch_s) == (interruption.phase, 0.0)
        and at - last.at <= _CAUSED_WITHIN_S
        and last.cause.startswith(interruption.cause)
    ):
        record.interruptions[-1] = replace(last, stretch_s=stretch_s)
    else:
        record.interruptions.append(interruption)


def _cause(record: GpuRecord, at: float) -> str:
    """Name what ended a stretch: the last event that says so, else the reason of a release."""
    released = None
    for event in reversed(record.events):
        if at - float(event["at"]) > _CAUSED_WITHIN_S:
            break
        cause = INTERRUPTIONS.get(event["event"])
        if cause is not None:
            return cause + _names(event)
        if released is None and event["event"] == "gpu.released":
            released = str(event["reason"])
    return released or "the run was stopped"


def _name_newcomer(record: GpuRecord, event: Mapping[str, Any]) -> None:
    """Add the processes to the last interruption: a newcomer's memory is seen before its name."""
    last = record.interruptions[-1]
    if last.cause == INTERRUPTIONS["gpu.yielding"]:
        record.interruptions[-1] = replace(last, cause=last.cause + _names(event))


def _names(event: Mapping[str, Any]) -> str:
    names = [str(process.get("name") or process["pid"]) for process in event.get("processes") or ()]
    return f" ({', '.join(names)})" if names else ""


def _take_sample(record: GpuRecord, sample: Mapping[str, Any]) -> None:
    """Add a sample to the phase of its time, or what is of the whole GPU to its record."""
    at = float(sample["at"])
    if any(first <= at < last for first, last in record.elsewhere):
        return
    record.sampled_s += float(sample["seconds"]) if sample["event"] == WORK else 0.0
    if sample["event"] == WATCHED:
        record.xids_watched.append((sample["first"], sample["last"]))
        return
    if sample["event"] == END:
        record.ends.append(OwnEnd(pid=sample["pid"], at=at - BEFORE_EXIT_S))
        return
    if sample["event"] == CHECKSUM:
        fields = {name: sample[name] for name in ("key", "checksum", "stored")}
        record.checksums.append(Checksum(**fields))
        return
    if sample["event"] == SELFTEST:
        record.selftests.append(Sample(at=at, values=sample))
        return
    for number, phase in enumerate(record.phases):
        if phase.has(at):
            worked = record.phases[number - 1] if number and at < phase.ready else phase
            lists = {
                TELEMETRY: phase.telemetry,
                WORK: worked.reports,
                LINK: worked.links,
                UNIT: worked.units,
            }
            if sample["event"] in lists:
                lists[sample["event"]].append(Sample(at=at, values=sample))
            return
