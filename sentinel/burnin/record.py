"""What was recorded of a burn-in, by GPU and phase; ``loading.py`` builds it. Pure.

Times are seconds of the monotonic clock of the host, as recorded.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sentinel.burnin.kernel_faults import KernelFault, distinct
from sentinel.burnin.xids import XidEvent, joined, missed
from sentinel.config.plan import Phase
from sentinel.config.verified_work import done_s, has_seconds
from sentinel.protocol.burnin_events import Dropped, RunStarted
from sentinel.protocol.commands import PhaseWork
from sentinel.protocol.counters import Counters
from sentinel.protocol.gpu_names import is_same_device
from sentinel.protocol.stressor import LinkPart
from sentinel.protocol.xids import BEFORE_EXIT_S, OwnEnd

#: The names of the samples: readings, and the work of an interval.
TELEMETRY, WORK = "telemetry", "work"
#: A stressor has ended.
END = "end"
#: An XID of the kernel's log; and from when until when those of NVML were watched without a break.
XID, WATCHED = "xid", "xids_watched"
#: A fault of the kernel's log beside XIDs.
KERNEL_FAULT = "kernel_fault"
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
LOST = Dropped.name

#: The event of the daemon with which a run begins, or goes on.
STARTED = RunStarted.name

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

#: Events that end the load of a stressor.
_ENDS = ("stressor.stopped", "stressor.failed", "stressor.fatal", "gpu.yielding")


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
    #: What was counted of it, and how often its end said that the memory was covered, or None.
    work: PhaseWork = field(default_factory=PhaseWork)
    told_passes: int | None = None
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
        return done_s(self.phase, self.work)

    @property
    def passes(self) -> int:
        """How often every pattern has covered the memory, by the lesser of two statements."""
        known = [self.work.passes()] if self.work.covered or self.told_passes is None else []
        return min(known + [told for told in [self.told_passes] if told is not None])

    @property
    def complete(self) -> bool:
        """Whether the whole quota is done."""
        return has_seconds(self.phase, self.work) and self.passes >= self.phase.passes

    def judged(self, samples: Iterable[Sample]) -> list[Sample]:
        """Select the samples of the stretches that count."""
        if len(self.stretches) == 1:  # as of most phases, and the checks ask hundreds of times
            ((first, last),) = self.stretches
            return [sample for sample in samples if first <= sample.at <= last]
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
        left = (p for p in self.phases if not p.complete and p.work.given_up is None)
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
