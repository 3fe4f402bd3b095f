"""The checks of what a GPU did under load: results, hangs, power, clocks and links. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from sentinel.burnin.checks.catalogue import ACTIONS, Table
from sentinel.burnin.checks.check import (
    Judgement,
    Limits,
    Status,
    Unjudged,
    by_action,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.evidence import NOTHING, GrowthEvidence, known_value, read
from sentinel.burnin.checks.measures import format_seconds, format_time
from sentinel.burnin.kernel_faults import KernelFault
from sentinel.burnin.record import INTERRUPTIONS, GpuRecord, PhaseRecord, Stretches
from sentinel.burnin.run_folder import Former
from sentinel.config.expectation import Expectation
from sentinel.core.node.burnin import FAULTY
from sentinel.protocol.counters import Counters
from sentinel.protocol.stressor import FindingPlace

TABLE = Table()

_STARTING = "stressor.starting"
#: Events after which others may have the GPU, until a stressor starts.
_TAKEN = frozenset({*INTERRUPTIONS, "gpu.busy", "gpu.handed_over"})
#: A reading stands for so many seconds at most: they are one second apart.
_READINGS_S = 2.0
#: The worst moment of a phase is what this share of its readings are below, and two at least: one
#: reading alone decides nothing.
_WORST_SHARE = 0.05
#: A temperature that differs from both its neighbours by more, in degrees Celsius, is an error of
#: the reading, and so is one above the highest that a GPU can have.
_JUMP_C, _HIGHEST_C = 30.0, 150.0
#: The neighbours of a reading are so far apart at most, in seconds: longer, and it may be true.
_NEIGHBOURS_S = 5.0
#: More such readings than so many, and than one in a hundred, are none.
_FEW_ERRORS = 2
#: A GPU is in use from this utilization on; in so many readings of a phase, or more.
_IN_USE, _FEW = 0.9, 4
#: Readings of this name fall where temperatures rise.
_MARGIN = "temperature_margin_c"


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
    #: Why the kernel's log has not all XIDs, or None.
    kernel_log_error: str | None = None
    #: The faults of the kernel's log that are of this GPU, and why there are none, or None.
    faults: Sequence[KernelFault] = ()
    faults_unread: str | None = None
    #: The verdicts of XIDs that a file of thresholds replaces, by number.
    xids: Mapping[int, str] = field(default_factory=dict)

    @property
    def readings(self) -> tuple[Counters, ...]:
        """The counters after, between the parts of and before the run, as far as they are known."""
        between = [one for part in reversed(self.record.resumed) for one in reversed(part)]
        found = (self.record.after, *between, self.record.before)
        return tuple(counters for counters in found if counters is not None)

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
        worked = sum(float(work.get(k, 0.0)) for work in works for k in ("seconds", "uncounted"))
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

    def throttled(self, reason: str) -> tuple[float, int, float]:
        """Add up the seconds of load in which readings had a reason for reduced clocks."""
        pairs = [
            (min(last.at - first.at, _READINGS_S), reason in last.values["reasons"])
            for _, first, last in self.record.under_load("reasons")
        ]
        seen = [seconds for seconds, has_it in pairs if has_it]
        return sum(seen), len(seen), sum(seconds for seconds, _ in pairs)

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
        readings = [sample.values for sample in self.record.telemetry]
        # Heat may end the stressor before the next sample, or come while it ends.
        readings += self.record.named("gpu.released")
        loads = Stretches(self.record.loads())
        heats = self.record.named("gpu.health_changed", "gpu.overheat")
        readings += [event for event in heats if event["at"] in loads]
        sampled = [float(one[name]) for one in readings if one.get(name) is not None]
        sampled += known_value(self.now, name)
        for error in self.implausible(name):
            sampled.remove(error)  # once: the same value may be right elsewhere
        return sampled

    def implausible(self, name: str) -> list[float]:
        """Collect temperatures, or margins, that differ from those just before and after them."""
        known = [
            (sample.at, float(value))
            for sample in self.record.telemetry
            if (value := sample.values.get(name)) is not None
        ]
        known += [(self.now.at, value) for value in known_value(self.now, name)]
        if not name.endswith("_c") or len(known) == 1:
            return []
        sign = -1.0 if name == _MARGIN else 1.0
        jumps = [
            value
            for (begin, first), (_, value), (end, last) in zip(
                known, known[1:], known[2:], strict=False
            )
            if value <= _HIGHEST_C
            and end - begin <= _NEIGHBOURS_S
            and sign * (value - first) > _JUMP_C
            and sign * (value - last) > _JUMP_C
        ]
        errors = jumps + [value for _, value in known if value > _HIGHEST_C]
        return errors if len(errors) <= max(_FEW_ERRORS, len(known) / 100) else []

    def losses(self) -> list[str]:
        """Describe each time at which the driver called the GPU lost."""
        return [
            f"at {format_time(event.get('time'))}: {event['reason']}"
            for event in self.record.named("gpu.unknown")
            if event.get("lost")
        ]

    def reasons(self) -> tuple[Counter[str], int]:
        """Count the samples that have each reason, and the newest counters as one more."""
        readings = [sample.values.get("reasons") for sample in self.record.telemetry]
        known = [reasons for reasons in readings if reasons is not None]
        if not known:
            return Counter(read(self.now, "reasons")), 1
        if self.now.reasons is not None:
            known.append(self.now.reasons)
        return Counter(reason for reasons in known for reason in reasons), len(known)

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
                    if one.values.get(name) and (one.values.get("utilization") or 0) >= _IN_USE
                ]
            )
            >= _FEW
        ]

    @property
    def checked(self) -> int:
        """How many results were checked."""
        return sum(int(phase.work.get("checks", 0)) for phase in self.record.phases)


NO_STEADY = "no stretch of a steady phase counts"


def steady_phases(record: GpuRecord) -> list[PhaseRecord]:
    """Select the steady phases with samples that count."""
    return [
        phase for phase in record.phases if phase.phase.steady and phase.judged(phase.telemetry)
    ]


def lowest(values: Sequence[float]) -> float:
    """Find the worst moment of some readings: what 5 % of them, and two at least, do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(1, int(len(ordered) * _WORST_SHARE)))]


#: What so many readings in a row do not exceed is no error of a reading.
_IN_A_ROW = 3


def lasting_low(values: Sequence[float]) -> float:
    """Find the worst moment as :func:`lowest` has it, or what some readings in a row were below."""
    rows = zip(*(values[first:] for first in range(_IN_A_ROW)), strict=False)
    return min(lowest(values), min((float(max(row)) for row in rows), default=float("inf")))


# --- results ---------------------------------------------------------------------------------


def wrong_results(record: GpuRecord) -> int:
    """Count the wrong results of a GPU, without differences from golden checksums."""
    # A lost event must not hide an error, and a phase does not count those of its stressor's end.
    reported = sum(int(event["errors"]) for event in record.named("stressor.mismatch"))
    counted = sum(int(phase.work.get("errors", 0)) for phase in record.phases)
    sampled = sum(int(s.values.get("errors") or 0) for p in record.phases for s in p.reports)
    of_units = sum(int(s.values["wrong"]) for phase in record.phases for s in phase.units)
    wrong = max(reported, counted, sampled, of_units)
    found = findings(record)
    if found and all(event["place"] == FindingPlace.GOLDEN for event in found):
        # Each counts as one error, although the GPU that was first may be the faulty one.
        wrong = max(0, wrong - len(found))
    return wrong


def findings(record: GpuRecord, *places: FindingPlace) -> list[Mapping[str, Any]]:
    """Select the findings of these places, or all."""
    found = record.named("stressor.finding")
    return [event for event in found if not places or event["place"] in places]


@TABLE.check("results.wrong")
def _results_wrong(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Count the wrong results."""
    wrong, checks = wrong_results(evidence.record), evidence.checked
    if not checks and not wrong:
        return untested("no result was checked")
    text = f"{checks:,} results checked"
    if not wrong:
        text += f"; less than {3 / checks:.1e} wrong results per check at 95 %"
    return by_limits(wrong, limits, text)


@TABLE.check("results.finding")
def _results_finding(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Count the findings, but those of golden checksums."""
    others = [place for place in FindingPlace if place is not FindingPlace.GOLDEN]
    found = findings(evidence.record, *others)
    if not found and not evidence.checked:
        return untested("no result was checked")
    places = ", ".join(sorted({str(event["place"]) for event in found}))
    if not found:
        return by_limits(0, limits, "")
    # The format, or the unit of the GPU.
    first = " ".join(filter(None, (found[0]["workload"], found[0].get("dtype"))))
    detail = found[0]["detail"]
    return by_limits(
        len(found), limits, f"wrong: {places}; first: {first}{detail and f', {detail}'}"
    )


@TABLE.check("gpu.hang")
def _gpu_hang(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Count the hangs and the failed readings."""
    record = evidence.record
    if all(phase.began is None for phase in record.phases):
        return untested("nothing was run")
    hangs = [event for event in _failures(record) if event.get("kind") == "hang"]
    hangs += [
        {"reason": f"pid {event['pid']} survived SIGKILL"}
        for event in record.named("stressor.unkillable")
    ]
    if evidence.losses():
        return untested("the GPU was lost, which gpu.lost has")
    if (record.ended or "").startswith(FAULTY):
        return by_limits(len(hangs) + 2, limits, record.ended or "")
    unread = record.named("gpu.unknown")
    if not hangs and limits["warn_unread"].broken_by(len(unread)):
        text = f"it could not be read {len(unread)} times; first: {unread[0]['reason']}"
        rule = f"times without a reading: warn {limits['warn_unread']}"
        return Judgement(status=Status.WARN, value=len(unread), evidence=text, threshold=rule)
    return by_limits(len(hangs), limits, hangs[0]["reason"] if hangs else "")


def _failures(record: GpuRecord) -> list[Mapping[str, Any]]:
    return record.named("stressor.failed", "stressor.fatal")


@TABLE.check("stressor.failures")
def _stressor_failures(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Count the failures of stressors that are no hangs."""
    kinds = {"crash", "workload", "stuck", "returned", "garbage"}
    failed = [event for event in _failures(evidence.record) if event.get("kind") in kinds]
    text = f"{failed[0]['kind']}: {failed[0]['reason']}" if failed else ""
    return by_limits(len(failed), limits, text)


# --- corrected errors ------------------------------------------------------------------------

#: The rate of corrected errors is that of so many seconds of load.
_MINUTE_S = 60.0


@TABLE.check("ecc.corrected_load")
def _ecc_corrected_load(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Judge the corrected errors under own load, and their rate."""
    name = "ecc_corrected_total"
    read(evidence.now, name)
    by_phase: dict[str, int] = {}
    # The seconds of load and the errors in them, after each reading.
    curve = [(0.0, 0)]
    for phase, first, last in evidence.record.under_load(name):
        # A counter that went backwards was reset: the errors in between are not known.
        grown = max(0, last.values[name] - first.values[name])
        by_phase[phase.phase.name] = by_phase.get(phase.phase.name, 0) + grown
        curve.append((curve[-1][0] + last.at - first.at, curve[-1][1] + grown))
    if not by_phase:
        return untested(f"{name} was not read under load")
    seconds, total = curve[-1]
    worst = _fastest(curve, _MINUTE_S)
    shown = ", ".join(f"{phase} {grown:,}" for phase, grown in by_phase.items() if grown)
    text = f"in {seconds:,.0f} s of own load: {shown or 'none'}"
    if worst is not None and total:
        text += f"; {worst:,.1f} a second in the worst minute"
    found = by_limits(total, limits, text)
    if worst is not None and limits["fail_rate"].broken_by(worst):
        return replace(found, status=Status.FAIL)
    if found.status is Status.WARN:
        return by_action(found, ACTIONS["watch"])
    return found


def _fastest(curve: Sequence[tuple[float, int]], least: float) -> float | None:
    """Find the highest rate of a counter over at least this time, or None if it is shorter."""
    rates = []
    begin = 0
    for seconds, count in curve:
        if seconds - curve[0][0] < least:
            continue
        while seconds - curve[begin + 1][0] >= least:
            begin += 1
        rates.append((count - curve[begin][1]) / (seconds - curve[begin][0]))
    return max(rates, default=None)


# --- the load --------------------------------------------------------------------------------


@TABLE.check("memory.covered")
def _memory_covered(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Judge the least share of the memory that a memory test covered."""
    tests = [phase.work for phase in evidence.record.phases if phase.phase.passes]
    if not tests:
        return not_applicable("the plan has no memory test")
    # While a stripe is held, the other patterns cover the rest only, by design.
    whole = [work for work in tests if work.get("retained") is None] or tests
    shares = [float(work["share"]) for work in whole if work.get("share") is not None]
    if not shares:
        return untested("no pattern has covered the memory")
    return by_limits(round(min(shares), 4), limits)


@TABLE.check("load.power")
def _load_power(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Judge the lowest share of the power limit in the steady phases."""
    evidence.under_load("power_w")
    shares = [
        (lasting_low(powers) / limit, phase.phase.name)
        for phase in steady_phases(evidence.record)
        if (powers := phase.readings("power_w")) and (limit := phase.median("power_limit_w"))
    ]
    if not shares:
        return untested("power_limit_w was not read under load")
    _must_be_plausible(evidence)
    share, where = min(shares)
    text = f"{share:.0%} of the enforced limit in the worst moments of {where}"
    return by_limits(round(share, 4), limits, text)


#: Readings of the power are so much of the limit at most; the energy of a run is so much of their
#: sum, or more.
_HIGHEST_POWER, _LEAST_ENERGY = 2.0, 0.5


def _must_be_plausible(evidence: LoadEvidence) -> None:
    """Check the readings of the power against the limit and the counter of energy.

    Raises:
        Unjudged: They contradict it.
    """
    record = evidence.record
    powers = evidence.samples("power_w")
    limit = max(evidence.samples("power_limit_w"))
    high = sum(power > _HIGHEST_POWER * limit for power in powers)
    if high > len(powers) * _WORST_SHARE:
        raise Unjudged(untested(f"power_w read {max(powers):,.0f} W at a limit of {limit:,.0f} W"))
    try:
        energy = evidence.known_growth("energy_j")
    except Unjudged:
        return
    sampled = sum(
        min(last.at - first.at, _READINGS_S) * last.values["power_w"]
        for _, first, last in record.under_load("power_w")
    )
    if energy < sampled * _LEAST_ENERGY:
        text = f"power_w adds up to {sampled:,.0f} J, and energy_j grew by {energy:,.0f} J"
        raise Unjudged(untested(text))


@TABLE.check("load.memory_clock")
def _load_memory_clock(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Compare the lowest memory clock with the maximum."""
    name = "memory_clock_maximum_mhz"
    own = read(evidence.now, name)
    same = [one for one in evidence.node if one.name == evidence.now.name]
    maximum = max(own, *(getattr(one, name) or 0 for one in same), 0)
    clock = min([evidence.under_load("memory_clock_mhz"), *evidence.elsewhere("memory_clock_mhz")])
    return by_limits(round(clock / maximum, 4), limits, f"{clock:g} of {maximum} MHz under load")


#: A rise of the power by so many watts, or by this share of the highest, changes any temperature.
_RISE_W, _RISE_SHARE = 200.0, 0.3
#: A temperature that varies by so many degrees Celsius at most has not changed.
_STUCK_C = 2.0


@TABLE.check("temperature.sensor")
def _temperature_sensor(evidence: LoadEvidence, _: Limits) -> Judgement:
    """Judge whether the temperature changes with the power."""
    name = "temperature_c"
    telemetry = [sample.values for sample in evidence.record.telemetry]
    values = [float(one[name]) for one in telemetry if one.get(name) is not None]
    if not any(values):
        return untested("no temperature was read" if not values else "it read 0 C all the time")
    powers = [float(one["power_w"]) for one in telemetry if one.get("power_w")]
    rise = max(powers, default=0.0) - min(powers, default=0.0)
    spread = max(values) - min(values)
    text = f"{min(values):g} to {max(values):g} C while the power varied by {rise:,.0f} W"
    if spread <= _STUCK_C and rise >= min(_RISE_W, _RISE_SHARE * max(powers, default=0.0)) > 0:
        return untested(f"it read {text}")
    return Judgement(status=Status.PASS, value=spread, evidence=text)
