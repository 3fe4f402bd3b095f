"""What the checks judge: the counters of a GPU at one moment or over a run, and those of a node.

A value that the GPU does not have makes a check not applicable; one that could not be read or
compared leaves it not tested. Neither is ever a fault. Both end the judgement by ``Unjudged``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sentinel.burnin.checks.check import (
    Judgement,
    Limits,
    Status,
    Unjudged,
    by_limits,
    not_applicable,
    unless_more,
    untested,
)
from sentinel.config.expectation import Expectation
from sentinel.protocol.counters import Counters, HostCounters
from sentinel.protocol.gpu import HIGHEST_C, IMPOSSIBLE
from sentinel.protocol.views import FaultKind

#: Where nothing is said of what a node must be.
NOTHING = Expectation()

#: The words in the names of counters that outlive a reset.
_KEPT = ("lifetime", "remapped", "retired")
RESET = "the driver was reloaded or the GPU was reset"


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What daemons know against a GPU."""

    #: Its faults, each with its remedy.
    faults: tuple[str, ...] = ()
    #: The number of its wrong results and findings that were not acknowledged.
    wrong: int = 0
    #: Why that number is not known, or None.
    unknown: str | None = None
    #: The joules that it had counted when a daemon that has ended found a fault; None if no such
    #: daemon did. One that has counted less was reset since, which ends its faults.
    energy_j: float | None = None


class GpuEvidence(ABC):
    """One GPU at one moment or over a run: what a check of both judges."""

    #: All GPUs of the node, at the time of the first reading.
    node: tuple[Counters, ...]
    #: What it must be.
    expectation: Expectation
    #: What daemons know against it; None if nothing was looked up.
    findings: Findings | None

    @property
    @abstractmethod
    def readings(self) -> tuple[Counters, ...]:
        """The counters of the GPU, the newest first."""

    @property
    def twins(self) -> list[Counters]:
        """The GPUs of the node that are of its model, and itself."""
        return [gpu for gpu in self.node if gpu.name == self.now.name]

    @abstractmethod
    def samples(self, name: str) -> list[float]:
        """Collect all known values of a reading that are plausible."""

    @property
    def was_cut_hot(self) -> bool:
        """Whether nothing was started on it, and the run was over before it had time to cool."""
        return False

    @abstractmethod
    def reasons(self) -> tuple[Counter[str], int]:
        """Count the readings that have each reason for reduced clocks, and all readings.

        Raises:
            Unjudged: They are not known.
        """

    def reasons_of_parts(self) -> list[tuple[Counter[str], int]]:
        """Count the reasons of all readings, and those of each part that is judged alone."""
        return [self.reasons()]

    @abstractmethod
    def under_load(self, name: str) -> float:
        """Find the worst value of a reading under load.

        Raises:
            Unjudged: The GPU was idle, or the value is not known.
        """

    def elsewhere(self, name: str) -> list[float]:  # noqa: ARG002 - for evidence with samples
        """Collect the worst values of a reading of a GPU in use outside the steady phases."""
        return []

    def implausible(self, name: str) -> list[float]:  # noqa: ARG002 - for evidence with samples
        """Collect the values of a reading that no GPU can have had."""
        return []

    def must_be_possible(self, name: str) -> None:
        """Check that a GPU can have all readings of a temperature but a few errors.

        Raises:
            Unjudged: Its sensor is broken.
        """
        highest = max(self.samples(name), default=0.0)
        if highest > HIGHEST_C:
            raise Unjudged(untested(IMPOSSIBLE.format(highest)))

    def losses(self) -> list[str]:
        """Describe when the driver called the GPU lost while it was watched."""
        return []

    def withdrawn(self, kind: FaultKind, known: str) -> list[str]:  # noqa: ARG002
        """Describe the faults of a kind that the driver showed meanwhile, but the known one."""
        return []

    def worst(self, judge: Callable[[Counters], Judgement], name: str) -> Judgement:
        """Judge each reading: the worst decides.

        What stood once is not undone by a later reading. What was answered once must be answered
        again.

        Args:
            judge: Judges one reading; may end by ``Unjudged``.
            name: What it reads, for messages.
        """
        found = []
        for one in [reading for reading in self.readings if reading.lost is None] or [self.now]:
            try:
                found.append(judge(one))
            except Unjudged as unjudged:
                found.append(unjudged.judgement)
        worst = min(found, key=lambda judged: judged.status.rank)
        unread = [one for one in found if one.status is Status.NOT_TESTED]
        if worst.status.has_judged and not all(one.status.has_judged for one in found):
            once = untested(f"{name} was answered only once")
            worst = unless_more(worst, next(iter(unread), once))
        if worst is not found[0] and worst.status in {Status.FAIL, Status.WARN}:
            evidence = ", ".join(filter(None, (worst.evidence, "before the end of the run")))
            return replace(worst, evidence=evidence)
        return worst

    @property
    def now(self) -> Counters:
        """The newest counters.

        Raises:
            Unjudged: There are none.
        """
        if not self.readings:
            raise Unjudged(untested("its counters are not known"))
        return self.readings[0]


@dataclass(frozen=True, kw_only=True)
class MomentEvidence(GpuEvidence):
    """One GPU at one moment, for ``sentinel check``."""

    counters: Counters
    node: tuple[Counters, ...] = ()
    findings: Findings | None = None
    expectation: Expectation = NOTHING

    @property
    def readings(self) -> tuple[Counters, ...]:
        """The only reading."""
        return (self.counters,)

    def samples(self, name: str) -> list[float]:
        """Return the value, if it is known."""
        return known_value(self.counters, name)

    def reasons(self) -> tuple[Counter[str], int]:
        """Return the reasons of the one reading."""
        return Counter(read(self.counters, "reasons")), 1

    def under_load(self, name: str) -> float:
        """Return the value of a GPU that is not idle now."""
        now = self.counters
        value = read(now, name)
        if now.reasons is None:
            raise Unjudged(untested("it is unknown whether the GPU is idle"))
        clock, maximum = now.sm_clock_mhz, now.sm_clock_maximum_mhz
        slow = clock is not None and maximum is not None and clock * 2 < maximum
        if "gpu_idle" in now.reasons or slow:
            raise Unjudged(untested("the GPU is idle, and the link may be slower then"))
        return float(value)


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How much a counter has grown over a run."""

    #: As far as it is known.
    least: float
    #: The readings, for people.
    text: str
    #: Why it may be more, or None.
    unknown: Judgement | None

    def judged(self, found: Judgement) -> Judgement:
        """Return the judgement of what is known; it is no PASS if the growth may be more."""
        return unless_more(found, self.unknown)


class GrowthEvidence(GpuEvidence):
    """One GPU over a time, with its counters before and after."""

    @property
    @abstractmethod
    def parts(self) -> Sequence[tuple[Counters | None, Counters | None, bool]]:
        """The counters before and after each part of the run, and whether those are of its end."""

    @property
    @abstractmethod
    def seconds(self) -> float | None:
        """The time of load between the readings, or None if it is unknown."""

    @property
    def time(self) -> str:
        """The time of load, for messages."""
        return f"{self.seconds:g} s of load"

    @property
    @abstractmethod
    def beside_others(self) -> float:
        """The seconds between the readings in which others had the GPU, or may have had it."""

    @abstractmethod
    def throttled(self, reason: str) -> list[tuple[float, int, float]]:
        """Add up the seconds of load in which readings had a reason for reduced clocks.

        Returns:
            These seconds, the number of such readings, and the seconds of all readings: of the run,
            and of each steady phase.
        """

    @abstractmethod
    def curve(self, name: str) -> list[tuple[float, float]]:
        """Select the known values of a reading under load, by time."""

    @abstractmethod
    def seen(self, reason: str) -> str:
        """Describe when readings had a reason for reduced clocks, or return nothing."""

    def pair(self) -> tuple[Counters, Counters]:
        """Return the counters before and after.

        Raises:
            Unjudged: There are no two readings.
        """
        if len(self.readings) < 2:  # noqa: PLR2004 - before and after
            raise Unjudged(untested("it needs two readings"))
        return self.readings[-1], self.readings[0]

    def growth(self, field: str, read_one: Callable[[Counters, str], Any] | None = None) -> Growth:
        """Add up the growth of a counter in each part.

        Args:
            field: The counter.
            read_one: Reads a counter that is no field of the GPU itself.

        Raises:
            Unjudged: It is not known before and after any part.
        """
        least: float = 0
        readings: list[str] = []
        unknown: list[Judgement] = []
        kept = any(word in field for word in _KEPT)
        former: float | None = None
        ends = [end for _, end, ended in self.parts[:-1] if end is not None and ended]
        for end, (begin, _, _) in zip(ends, self.parts[1:], strict=False):
            # Without persistence, the counters begin again whenever nothing uses the GPU.
            if not kept and begin is not None and begin.persistence and _was_reset(end, begin):
                unknown.append(untested(f"between two parts, {RESET}"))
        for before, after, ended in self.parts:
            if before is None or after is None or (ended and after == before):
                unknown.append(untested("it needs two readings"))
                continue
            try:
                first, last = both(before, after, field, read_one or read)
            except Unjudged as unjudged:
                unknown.append(unjudged.judgement)
                continue
            if (kept or isinstance(first, bool)) and former is not None and first > former:
                # What the card itself has counted or shown between two parts is of the card.
                readings.append(f"between two parts from {former:g} to {first:g}")
                least += first - former
            former = last
            readings.append(f"from {first:g} to {last:g}")
            backwards = last < first
            reset = backwards or (not kept and _was_reset(before, after))
            if reset:
                why = f"{field} went backwards {readings[-1]}: " if backwards else ""
                unknown.append(untested(f"{why}{RESET}"))
            if reset and not ended:
                continue  # a GPU in use is not reset: all since then came after the killed part
            # A counter that went backwards began again at 0; a flag was cleared.
            least += last if backwards and not kept else max(0, last - first)
        if not readings:
            raise Unjudged(unknown[0])
        return Growth(
            least=least,
            text=f"{field} {', '.join(readings)}",
            unknown=next((one for one in unknown if one.status is Status.NOT_TESTED), None),
        )

    def per_second(self, growth: float, *, beside_others: bool = False) -> float:
        """Divide a growth by the time of load.

        Args:
            growth: Of a counter.
            beside_others: Divide it by the time that others may have had the GPU as well.

        Raises:
            Unjudged: The time is unknown.
        """
        if not self.seconds or self.seconds <= 0:
            raise Unjudged(untested("the time between the readings is unknown"))
        return growth / (self.seconds + (self.beside_others if beside_others else 0.0))

    def judge_rate(self, sure: float, possible: float, limits: Limits, text: str) -> Judgement:
        """Judge a rate of what is counted beside others, too: they make it no fault.

        Args:
            sure: The least rate under load.
            possible: The rate if others counted nothing; a warning at most.
            limits: Of the rate.
            text: The evidence.
        """
        found = by_limits(sure, limits, text)
        if found.status is Status.FAIL or not self.beside_others:
            return found
        warns = {name: limit for name, limit in limits.items() if name != "fail"}
        if by_limits(possible, limits).status is Status.FAIL:
            text += "; others may have caused it, so that it is no fault of the GPU"
        return by_limits(possible, warns, text)


@dataclass(frozen=True, kw_only=True)
class NodeEvidence:
    """All that the checks of a node may use."""

    #: All GPUs that NVML lists.
    gpus: tuple[Counters, ...]
    #: The GPUs on the PCI bus that NVML should list, or None if unknown.
    pci_devices: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class HostEvidence:
    """The host around the GPUs at one moment or over a run."""

    before: HostCounters
    #: None at one moment.
    after: HostCounters | None = None


@dataclass(frozen=True, kw_only=True)
class ExpectedEvidence:
    """What a node must be, and what is there."""

    expectation: Expectation
    #: All GPUs that NVML listed, also those that are lost.
    listed: tuple[Counters, ...]
    #: The host at one moment, or before and after a run.
    hosts: tuple[HostCounters, ...] = ()
    #: Whether GPUs were selected.
    selected: bool = False
    #: The UUIDs of the GPUs of a burn-in; None without one.
    tested: Collection[str] | None = None
    #: The GPUs that were burned in or held on this host before: descriptions by UUID.
    known: Mapping[str, str] = field(default_factory=dict)
    #: What daemons know against GPUs, by UUID.
    findings: Mapping[str, Findings] = field(default_factory=dict)
    #: The GPUs on the PCI bus, or None if unknown.
    pci_devices: tuple[str, ...] | None = None
    #: Why NVML lists nothing, or None.
    driver_error: str | None = None


@dataclass(frozen=True, kw_only=True)
class ParticipationEvidence:
    """Which GPUs of a node took part in a burn-in."""

    #: All GPUs that NVML listed before the run, also those that could not be identified.
    listed: tuple[Counters, ...]
    #: The UUIDs of the GPUs of the run.
    tested: Collection[str]
    #: Whether the GPUs were selected, so that others are none of the run's; None if unknown.
    selected: bool | None
    #: What CUDA ignored of the variable that selected them, or None.
    ignored: str | None = None
    #: The holders of GPUs that were to be tested, by UUID, which Sentinel therefore left out.
    held: Mapping[str, str] = field(default_factory=dict)


# --- values of the counters ------------------------------------------------------------------


def read(counters: Counters, field: str) -> Any:
    """Look up a value.

    Raises:
        Unjudged: It is not known.
    """
    if counters.lost is not None:
        raise Unjudged(untested("the GPU could not be read"))
    if field in counters.failed:
        raise Unjudged(untested(f"{field} could not be read: {counters.failed[field]}"))
    value = getattr(counters, field)
    if value is None:
        raise Unjudged(not_applicable())
    return value


def both(
    before: Counters, after: Counters, field: str, read_one: Callable[[Counters, str], Any]
) -> tuple[Any, Any]:
    """Read a value before and after.

    Raises:
        Unjudged: One of them is not known. A counter that answers once is one that the GPU has.
    """
    found: list[Any] = []
    missing: list[Judgement] = []
    for one in (before, after):
        try:
            found.append(read_one(one, field))
        except Unjudged as unjudged:
            missing.append(unjudged.judgement)
    if not missing:
        return found[0], found[1]
    if found and missing[0].status is Status.NOT_APPLICABLE:
        raise Unjudged(untested(f"{field} was answered only once"))
    raise Unjudged(missing[0])


def judge_sum(limits: Limits, read_one: Callable[[str], Any], *fields: str) -> Judgement:
    """Judge the sum of numbers and flags by the limits; those that are missing are left out."""
    values: dict[str, Any] = {}
    missing = []
    for name in fields:
        try:
            values[name] = read_one(name)
        except Unjudged as unjudged:
            missing.append(unjudged.judgement)
    text = ", ".join(f"{name} = {int(value)}" for name, value in values.items() if value)
    found = by_limits(sum(values.values()), limits, text)
    unread = [judgement for judgement in missing if judgement.status is Status.NOT_TESTED]
    return unless_more(found, next(iter(unread if values else unread or missing), None))


def known_value(counters: Counters, field: str) -> list[float]:
    """Return a number in a list, which is empty if the number is not known."""
    value = getattr(counters, field, None)
    return [] if value is None else [float(value)]


def _was_reset(before: Counters, after: Counters) -> bool:
    """Check whether the counters began again between two readings."""
    if before.driver != after.driver:
        return True
    energies = before.energy_j, after.energy_j
    return None not in energies and energies[1] < energies[0]  # type: ignore[operator]
