"""What the checks of a burn-in judge of one GPU: its record, its peers and its past. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from sentinel.burnin.checks.check import Unjudged, untested
from sentinel.burnin.checks.evidence import (
    NOTHING,
    Findings,
    GrowthEvidence,
    known_value,
    read,
)
from sentinel.burnin.checks.measures import format_seconds, format_time
from sentinel.burnin.checks.operator_limits import limited_less
from sentinel.burnin.former_runs import Former
from sentinel.burnin.kernel_faults import KernelFault
from sentinel.burnin.record import INTERRUPTIONS, GpuRecord, PhaseRecord, Sample, Stretches
from sentinel.config.expectation import Expectation
from sentinel.protocol.burnin_events import TOO_HOT
from sentinel.protocol.counters import Counters
from sentinel.protocol.gpu import HIGHEST_C
from sentinel.protocol.views import FaultKind

NO_STEADY = "no stretch of a steady phase counts"
_STARTING = "stressor.starting"
#: Events after which others may have the GPU, until a stressor starts.
_TAKEN = frozenset({*INTERRUPTIONS, "gpu.busy", "gpu.handed_over"})
#: A reading stands for so many seconds at most: they are one second apart.
READINGS_S = 2.0
#: The worst moment of a phase is what this share of its readings are below, and two at least: one
#: reading alone decides nothing.
WORST_SHARE = 0.05
#: A temperature that differs from both its neighbours by more, in degrees Celsius, is an error of
#: the reading, and so is one above the highest that a GPU can have. The steepest measured step of
#: two seconds is that of an H200 whose load of 640 W ended: 22; it is 5 at a constant load
#: (benchmarks/measured/h200-heat.jsonl).
_JUMP_C = 22.0
#: The neighbours of a reading are so far apart at most, in seconds: longer, and it may be true.
_NEIGHBOURS_S = 4.0
#: More such readings than so many, and than one in a hundred, are none.
FEW_ERRORS = 2
#: A GPU is in use from this utilization on; in so many readings of a phase, or more.
_IN_USE, _FEW = 0.9, 4
#: Readings of this name fall where temperatures rise.
_MARGIN = "temperature_margin_c"
#: What so many readings in a row do not exceed is no error of a reading.
_IN_A_ROW = 3

#: Reasons of a GPU that is well.
_NORMAL = frozenset({"gpu_idle", "sw_power_cap"})


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A rate that was measured on one model."""

    #: The workload, with its options.
    workload: str
    #: ``TFLOP/s`` or ``TB/s``.
    unit: str
    median: float
    #: How many runs were measured, each on one GPU.
    n: int
    #: How they were measured.
    state: str
    source: str


@dataclass(frozen=True, kw_only=True)
class LoadEvidence(GrowthEvidence):
    """What the checks of one GPU in a burn-in may use."""

    record: GpuRecord
    #: All GPUs of the run that are of the same model.
    peers: Sequence[GpuRecord] = ()
    references: Sequence[Reference] = ()
    #: Earlier runs of the same plan on this card, with the same driver.
    former: Sequence[Former] = ()
    #: The model's name, for messages.
    model: str = ""
    node: tuple[Counters, ...] = ()
    expectation: Expectation = NOTHING
    findings: Findings | None = None
    #: Why the kernel's log has not all XIDs, or None.
    kernel_log_error: str | None = None
    #: The faults of the kernel's log that are of this GPU, and why there are none, or None.
    faults: Sequence[KernelFault] = ()
    faults_unread: str | None = None
    #: The verdicts of XIDs that a file of thresholds replaces, by number.
    xids: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def limited_less(self) -> frozenset[int]:
        """The ids of the peers' phases that an operator has limited less; several checks ask."""
        return frozenset(map(id, limited_less(self.record, self.peers)))

    @property
    def readings(self) -> tuple[Counters, ...]:
        """The counters after, between the parts of and before the run, as far as they are known."""
        between = [one for part in reversed(self.record.resumed) for one in reversed(part)]
        found = (self.record.after, *between, self.record.before)
        return tuple(counters for counters in found if counters is not None)

    @property
    def was_cut_hot(self) -> bool:
        """Whether nothing was started on it, and the run did not wait for it to cool either."""
        record = self.record
        begun = record.telemetry or any(one["event"] == _STARTING for one in record.events)
        return not begun and record.ended != TOO_HOT

    @property
    def parts(self) -> Sequence[tuple[Counters | None, Counters | None, bool]]:
        """The counters before and after each part of the run, and whether those are of its end.

        A part that was killed lasts until the next one: nothing was read at its end.
        """
        found: list[tuple[Counters | None, Counters | None, bool]] = []
        before = self.record.before
        for after, again in self.record.resumed:
            found.append((before, after or again, after is not None))
            before = again
        return [*found, (before, self.record.after, True)]

    @property
    def seconds(self) -> float | None:
        """The seconds of load between the readings; waiting dilutes no share of the time.

        A phase within which the run was killed has no end that counts its work: its samples do.
        """
        passed = sum(after.at - before.at for before, after, _ in self.parts if before and after)
        works = [phase.work for phase in self.record.phases]
        worked = sum(part for work in works for part in (work.seconds, work.uncounted))
        worked = max(worked, self.record.sampled_s)
        return min(passed, worked) if worked else passed

    @property
    def time(self) -> str:
        """The time of load, for messages, with what was not recorded of it."""
        gap = " that were recorded: a part of the run was killed" if self.record.cut else ""
        return f"{super().time}{gap}"

    @property
    def beside_others(self) -> float:
        """The seconds between the readings in which others had the GPU, or may have had it.

        From what took it until its next stressor starts; from a reading until the first one starts;
        and from the last event of a part that was killed.
        """
        events = [(float(event["at"]), event["event"]) for event in self.record.events]
        if all(name != _STARTING for _, name in events):
            return 0.0
        marks = [(at, name != _STARTING) for at, name in events if name in (*_TAKEN, _STARTING)]
        for _, after, ended in self.parts[:-1]:
            if not ended and after is not None:
                marks.append((max((at for at, _ in events if at < after.at), default=0.0), True))
        marks += [(before.at, True) for before, _, _ in self.parts if before is not None]
        if self.record.after is not None:
            marks.append((self.record.after.at, False))
        return sum(end - at for (at, others), (end, _) in pairwise(sorted(marks)) if others)

    def throttled(self, reason: str) -> list[tuple[float, int, float]]:
        """Add up the seconds of load in which readings had a reason for reduced clocks."""
        found = []
        for part in self._timed_reasons:
            seen = [seconds for seconds, reasons in part if reason in reasons]
            found.append((sum(seen), len(seen), sum(seconds for seconds, _ in part)))
        return found

    @cached_property
    def _timed_reasons(self) -> list[list[tuple[float, Collection[str]]]]:
        """The seconds under load with their reasons, of the run and of each steady phase.

        Several checks ask for another reason each.
        """
        pairs = [
            (phase, min(last.at - first.at, READINGS_S), last.values["reasons"])
            for phase, first, last in self.record.under_load("reasons")
        ]
        return [
            [(seconds, reasons) for phase, seconds, reasons in pairs if part in {None, id(phase)}]
            for part in (None, *map(id, steady_phases(self.record)))
        ]

    def seen(self, reason: str) -> str:
        """Describe when readings had a reason for reduced clocks, or return nothing."""
        found = [
            (phase.phase.name, sample)
            for phase in self.record.phases
            for sample in phase.telemetry
            if reason in (sample.values.get("reasons") or ())
        ]
        if not found:
            return ""
        (_, first), (_, last) = found[0], found[-1]
        since = format_time(first.values.get("time"))
        text = f"seen in {', '.join(dict.fromkeys(name for name, _ in found))} from {since} on"
        return f"{text}, last {format_seconds(last.at - first.at)} later"

    def samples(self, name: str) -> list[float]:
        """Collect a reading of all phases, and of the newest counters."""
        errors = self.implausible(name)
        sampled = [*(value for _, value in self.curve(name)), *known_value(self.now, name)]
        for error in errors:
            sampled.remove(error)  # once: the same value may be right elsewhere
        # Heat may end the stressor before the next sample, or come while it ends.
        loads = Stretches(self.record.loads())
        heats = self.record.named("gpu.health_changed", "gpu.overheat")
        events = [event for event in heats if event["at"] in loads]
        events += self.record.named("gpu.released")
        values = [float(event[name]) for event in events if event.get(name) is not None]
        # An event repeats a reading, and so its error.
        return sampled + [one for one in values if one <= HIGHEST_C or one not in errors]

    def implausible(self, name: str) -> list[float]:
        """Collect temperatures, or margins, that differ from those just before and after them."""
        known = [*self.curve(name), *((self.now.at, one) for one in known_value(self.now, name))]
        if not name.endswith("_c") or len(known) == 1:
            return []
        sign = -1.0 if name == _MARGIN else 1.0
        jumps = [
            value
            for (begin, first), (_, value), (end, last) in zip(
                known, known[1:], known[2:], strict=False
            )
            if value <= HIGHEST_C
            and end - begin <= _NEIGHBOURS_S
            and sign * (value - first) > _JUMP_C
            and sign * (value - last) > _JUMP_C
        ]
        errors = jumps + [value for _, value in known if value > HIGHEST_C]
        return errors if len(errors) <= max(FEW_ERRORS, len(known) / 100) else []

    def plausible(self, name: str, samples: Iterable[Sample]) -> list[float]:
        """Collect the known values of a reading that are no errors of it."""
        values = [float(one.values[name]) for one in samples if one.values.get(name) is not None]
        for error in self.implausible(name):
            if error in values:
                values.remove(error)
        return values

    def curve(self, name: str) -> list[tuple[float, float]]:
        """Select the known values of a reading under load, by time."""
        return sorted(
            (sample.at, float(value))
            for sample in self.record.telemetry
            if (value := sample.values.get(name)) is not None
        )

    def losses(self) -> list[str]:
        """Describe each time at which the driver called the GPU lost."""
        unknown = [
            f"at {format_time(event.get('time'))}: {event['reason']}"
            for event in self.record.named("gpu.unknown")
            if event.get("lost")
        ]
        return unknown + self.withdrawn(FaultKind.LOST, "")

    def withdrawn(self, kind: FaultKind, known: str) -> list[str]:
        """Describe the faults of a kind that the driver showed meanwhile, but the known one."""
        return [
            f"at {format_time(event.get('time'))}: {event['reason']}"
            for event in self.record.named("gpu.fault")
            if event["fault"] == kind and event["reason"] != known
        ]

    def reasons(self) -> tuple[Counter[str], int]:
        """Count the samples that have each reason, and the newest counters as one more."""
        readings = [sample.values.get("reasons") for sample in self.record.telemetry]
        known = [reasons for reasons in readings if reasons is not None]
        if not known:
            now = Counter(read(self.now, "reasons"))
            if readings and now.keys() <= _NORMAL:  # after the load it proves nothing of the load
                raise Unjudged(untested("reasons was not read under load"))
            return now, 1
        if self.now.reasons is not None:
            known.append(self.now.reasons)
        return Counter(reason for reasons in known for reason in reasons), len(known)

    def reasons_of_parts(self) -> list[tuple[Counter[str], int]]:
        """Count the reasons of all readings, and those of each steady phase."""
        found = [self.reasons()]
        for phase in steady_phases(self.record):
            readings = [one.values.get("reasons") for one in phase.judged(phase.telemetry)]
            known = [reasons for reasons in readings if reasons is not None]
            counted = Counter(reason for reasons in known for reason in reasons)
            found += [(counted, len(known))] if known else []
        return found

    def under_load(self, name: str) -> float:
        """Find the worst value of a reading in the steady phases, as :func:`lowest` has it."""
        phases = steady_phases(self.record)
        if not phases:
            raise Unjudged(untested(NO_STEADY))
        known = [values for phase in phases if (values := phase.readings(name))]
        if not known:
            raise Unjudged(untested(f"{name} was not read under load"))
        worst = min(map(lasting_low, known))
        if not worst:
            zeros = sum(value == 0 for values in known for value in values)
            share = f"{zeros / sum(map(len, known)):.0%}"
            raise Unjudged(untested(f"{name} read 0 in {share} of the samples under load"))
        return worst

    def elsewhere(self, name: str) -> list[float]:
        """Find the worst value of a reading in each other phase, while the GPU was in use."""
        return [
            lasting_low(values)
            for phase in self.record.phases
            if not phase.phase.steady
            and len(
                values := [
                    float(one.values[name])
                    for one in phase.judged(phase.telemetry)
                    if one.values.get(name) and _is_in_use(one.values.get("utilization"))
                ]
            )
            >= _FEW
        ]

    @property
    def checked(self) -> int:
        """How many results were checked."""
        return sum(phase.work.checks for phase in self.record.phases)


def _is_in_use(utilization: float | None) -> bool:
    """Check whether a stressor uses its GPU; one whose use is not known is not taken for idle."""
    return utilization is None or utilization >= _IN_USE


def steady_phases(record: GpuRecord) -> list[PhaseRecord]:
    """Select the steady phases with samples that count."""
    return [
        phase for phase in record.phases if phase.phase.steady and phase.judged(phase.telemetry)
    ]


def lowest(values: Sequence[float]) -> float:
    """Find the worst moment of some readings: what 5 % of them, and two at least, do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(1, int(len(ordered) * WORST_SHARE)))]


def lasting_low(values: Sequence[float]) -> float:
    """Find the worst moment as :func:`lowest` has it, or what some readings in a row were below."""
    rows = zip(*(values[first:] for first in range(_IN_A_ROW)), strict=False)
    return min(lowest(values), min((float(max(row)) for row in rows), default=float("inf")))
