"""Compare the rates and temperatures of a GPU with equal ones and with references. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace

from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import (
    Judgement,
    Limits,
    Status,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.load_evidence import NO_STEADY, LoadEvidence, lowest, steady_phases
from sentinel.burnin.checks.measures import format_measure
from sentinel.burnin.checks.operator_limits import (
    is_locked,
    left_at_times,
    left_by_clock,
    left_by_limit,
    limit_share,
    limited_by,
)
from sentinel.burnin.checks.peers import (
    MIN_DEVIATION,
    MIN_PEERS,
    Peers,
    judge_rate,
    judge_temperature,
    peers_of,
    usual_rate,
)
from sentinel.burnin.former_runs import is_copy
from sentinel.burnin.record import GpuRecord, PhaseRecord
from sentinel.config.plan import Phase

TABLE = Table()

#: The workload of matrix products.
_PRODUCTS = "gemm"
IN_MEMORY = "a simulated GPU copies in the host's memory"


def _at_the_same_time(evidence: LoadEvidence, phase: PhaseRecord) -> list[PhaseRecord]:
    """Select this phase of the GPU and its peers, if it is steady at the same time.

    That of a peer counts if its last stretch covers at least half of this GPU's.
    """
    number = evidence.record.phases.index(phase)
    found = [peer.phases[number] for peer in evidence.peers]
    if not phase.phase.steady:
        return found
    begin, end = phase.stretches[-1]

    def common(other: PhaseRecord) -> float:
        first, last = other.stretches[-1] if other.stretches else (begin, begin)
        return min(end, last) - max(begin, first)

    return [other for other in found if common(other) >= (end - begin) / 2]


def compared_phases(record: GpuRecord, unit: str) -> list[PhaseRecord]:
    """Select the phases with rates that are compared: products, or copies of the memory.

    Args:
        record: The GPU.
        unit: ``flops`` or ``bytes``.
    """

    def counts(phase: Phase) -> bool:
        if unit == "bytes":
            return is_copy(phase.workload)
        return phase.steady or phase.workload.partition(":")[0] == _PRODUCTS

    return [phase for phase in record.phases if counts(phase.phase) and phase.rates(unit)]


def rates_of(phases: Iterable[PhaseRecord], unit: str) -> list[float]:
    """Compute the median rate of each phase, over its stretches that count; without any, none."""
    return [statistics.median(rates) for phase in phases if (rates := phase.rates(unit))]


def _rate(phase: PhaseRecord, unit: str) -> float:
    """Compute the median rate of a phase; 0.0 without a stretch that counts."""
    return next(iter(rates_of([phase], unit)), 0.0)


def equals_of(evidence: LoadEvidence, phases: Iterable[PhaseRecord]) -> list[PhaseRecord]:
    """Select the phases of GPUs that nothing set lets be faster than this one."""
    return [phase for phase in phases if id(phase) not in evidence.limited_less]


def _explained_share(own: GpuRecord, phase: PhaseRecord, clock: float | None) -> float:
    """Compute which share of a rate a lower power limit and locked clocks leave at least.

    Args:
        own: The GPU.
        phase: The phase that is compared.
        clock: The clock of what it is compared with.
    """
    limit, median = limit_share(own, phase), phase.median("sm_clock_mhz")
    shares = [1.0] if limit is None else [left_by_limit(limit)]
    if is_locked(phase):
        shares.append(left_by_clock(median / clock if median and clock else 1.0))
    return min(shares)


def _beyond_excuse(evidence: LoadEvidence, unit: str, why: str) -> Judgement | None:
    """Judge a rate that no lower power limit and no locked clock explains; None if they may."""
    own = evidence.record
    for phase in compared_phases(own, unit):
        others = [one for one in _at_the_same_time(evidence, phase) if one is not phase]
        rates = rates_of(others, unit)
        if not rates or limited_by(own, phase) is None:
            continue
        clocks = [clock for one in others if (clock := one.median("sm_clock_mhz"))]
        usual = statistics.median(clocks) if clocks else None
        share = _rate(phase, unit) / statistics.median(rates)
        if share < _explained_share(own, phase, usual):
            text = f"{phase.phase.name}: {share:.2f} of its peers, which {why} does not explain"
            return Judgement(status=Status.FAIL, value=round(share, 4), evidence=text)
    return None


def _limited_by(own: GpuRecord) -> str | None:
    """Explain by what an operator has set in any phase why a rate is not that of others."""
    return next(filter(None, (limited_by(own, phase) for phase in own.phases)), None)


@TABLE.rule("peers")
def _judge_peers(evidence: LoadEvidence, limits: Limits, unit: str) -> Judgement:
    """Judge each phase by those of equal GPUs: the worst decides."""
    own = evidence.record
    found: list[Judgement] = []
    unlike = False
    for phase in compared_phases(own, unit):
        together = _at_the_same_time(evidence, phase)
        equals = equals_of(evidence, together)
        unlike = unlike or len(equals) < min(len(together), MIN_PEERS)
        rates, rate = rates_of(equals, unit), _rate(phase, unit)
        peers = peers_of(rates, MIN_DEVIATION if unit == "flops" else 0.0)
        name = phase.phase.name
        if peers is not None:
            peers = replace(peers, median=usual_rate(rates))
            judged = judge_rate(rate, peers, limits, unit)
        # What was done at other times is compared, too: the best of all shows that most are slow.
        number = own.phases.index(phase)
        rates = rates_of(equals_of(evidence, (p.phases[number] for p in evidence.peers)), unit)
        best = Peers(count=len(rates), median=max(rates, default=0.0), deviation=0.0)
        warn = limits["warn_few" if peers is None else "warn_best"]
        few = judge_rate(rate, best, {"warn": warn}, unit)
        both = (format_measure(f"{unit}_per_s", one) for one in (rate, best.median))
        text = f"; the best of {len(rates)} has ".join(both)
        if peers is None and len(rates) > 1:
            alone = few.status is Status.PASS
            judged = replace(
                few,
                status=Status.NOT_APPLICABLE if alone else few.status,
                value=None if alone else few.value,
                evidence=f"not compared: fewer than {MIN_PEERS} equal GPUs; {text}",
            )
        elif peers is None:
            continue
        elif few.status is Status.WARN and judged.status is Status.PASS:
            judged = replace(few, evidence=text)
        found.append(replace(judged, evidence=f"{name}: {judged.evidence}"))
    if found:
        return min(found, key=lambda one: (one.status.rank, one.value or 0.0))
    limited = _limited_by(own)
    if unlike:
        why = limited or "CONFIG: the power limits or clocks of its peers differ"
        return _beyond_excuse(evidence, unit, why) or untested(why)
    if not compared_phases(own, unit):
        return untested(limited or (NO_STEADY if unit == "flops" else "no bandwidth counts"))
    return not_applicable(f"not compared: fewer than {MIN_PEERS} equal GPUs ran at the same time")


@TABLE.check("load.temperature_spread")
def _load_temperature_spread(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Compare the temperature with that of the peers at the same power."""
    name = "temperature_c"
    steady = steady_phases(evidence.record)
    phases = _at_the_same_time(evidence, steady[-1]) if steady else []
    peers = peers_of(phase.median(name) for phase in phases)
    if peers is None:
        return not_applicable(f"fewer than {MIN_PEERS} GPUs to compare with")
    own = steady[-1].median(name)
    if own is None:
        return untested("its temperature was not read under load")
    counters = [peer.before for peer in evidence.peers if peer.before is not None]
    before = [one.temperature_c for one in counters if one.temperature_c is not None]
    powers = peers_of(phase.median("power_w") for phase in phases)
    power = steady[-1].median("power_w")
    if not power or powers is None or not before or power >= powers.median:
        return judge_temperature(own, peers, limits)
    air = min(*before, own, peers.median)
    less = (peers.median - air) * (1 - power / powers.median)
    found = judge_temperature(own, peers, limits, less)
    text = (
        f"{found.evidence}; {_per_watt(own - air, power)}, theirs"
        f" {_per_watt(peers.median - air, powers.median)}, above {air:g} C"
    )
    return replace(found, evidence=text)


def _per_watt(degrees: float, power: float) -> str:
    return f"{degrees / power:.3f} C/W at {power:g} W"


@TABLE.check("rate.worst")
def _rate_worst(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Judge the worst moments of all steady phases and copies."""
    if evidence.now.is_simulated:
        return not_applicable("a simulated GPU computes on the host's cores")
    found: list[tuple[Judgement, float]] = []
    for unit in ("flops", "bytes"):
        phases = [
            p for p in compared_phases(evidence.record, unit) if p.phase.steady or unit == "bytes"
        ]
        for phase in phases:
            same = [one for one in phases if one.phase.workload == phase.phase.workload]
            best = max(_rate(one, unit) for one in same)
            equals = equals_of(evidence, _at_the_same_time(evidence, phase))
            peers = peers_of(rates_of(equals, unit))
            usual = max(
                best, peers.median if peers and not limited_by(evidence.record, phase) else 0
            )
            found.append(_judge_worst(phase, unit, usual, limits))
    if not found:
        return untested(NO_STEADY)
    return min(found, key=lambda one: (one[0].status.rank, one[1]))[0]


def _judge_worst(
    phase: PhaseRecord, unit: str, usual: float, limits: Limits
) -> tuple[Judgement, float]:
    """Judge the worst moments of a phase; return the share of the lowest rates as well."""
    reports = [one for one in phase.judged(phase.reports) if one.values["seconds"] > 0]
    shares = [
        one.values[unit] / one.values["seconds"] / usual / left
        for one, left in zip(reports, left_at_times(phase, reports), strict=True)
    ]
    low, quarter = lowest(shares), sorted(shares)[len(shares) // 4]
    slow = limits["fail_quarter"]
    longest = current = 0.0
    for one, share in zip(reports, shares, strict=True):
        current = current + float(one.values["seconds"]) if slow.broken_by(share) else 0.0
        longest = max(longest, current)
    text = f"{phase.phase.name}: 5 % of the time below {low:.1%} of"
    text += f" {format_measure(f'{unit}_per_s', usual)}; longest below {slow.value:g}:"
    text += f" {longest:,.0f} s"
    judged = by_limits(round(low, 4), {"warn": limits["warn"]}, text)
    if limits["warn_stretch_s"].broken_by(longest):
        judged = replace(judged, status=Status.WARN)
    if slow.broken_by(quarter) or limits["fail_stretch_s"].broken_by(longest):
        judged = replace(judged, status=Status.FAIL)
    return judged, low


@TABLE.check("bandwidth.peers")
def _bandwidth_peers(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Compare the bandwidth of the memory with that of the peers."""
    if evidence.now.is_simulated:
        return not_applicable(IN_MEMORY)
    return _judge_peers(evidence, limits, "bytes")


@TABLE.check("rate.reference")
def _rate_reference(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Compare the rates with the references of the model."""
    if not evidence.references:
        return not_applicable(f"there is no reference for {evidence.model}")
    fastest = evidence.now.sm_clock_maximum_mhz
    shares, texts, limited, beyond = [], [], None, False
    for reference in evidence.references:
        unit = "flops" if reference.unit == "TFLOP/s" else "bytes"
        own = [
            (_rate(phase, unit) / 1e12 / reference.median, phase)
            for phase in evidence.record.phases
            if phase.phase.workload == reference.workload and phase.rates(unit)
        ]
        for share, phase in own:
            limited = limited or limited_by(evidence.record, phase)
            least = limits["fail"].value * _explained_share(evidence.record, phase, fastest)
            beyond = beyond or share < least
        if own:
            share = min(share for share, _ in own)
            shares.append(share)
            expected = f"{reference.median:g} {reference.unit} ({reference.source})"
            rate = format_measure(f"{unit}_per_s", share * 1e12 * reference.median)
            texts.append(f"{reference.workload}: {rate} of {expected}")
    if not shares:
        return untested(limited or "no rate counts")
    judged = by_limits(round(min(shares), 4), limits, "; ".join(texts))
    if limited is None:
        return judged
    if not beyond:
        return untested(f"{limited}; {judged.evidence}")
    text = f"{judged.evidence}, which {limited} does not explain"
    return replace(judged, status=Status.FAIL, evidence=text)


#: The limits of a rate among peers, also for a random set of rates (:func:`judge_rate`).
RATE_LIMITS = TABLE["rate.peers"].limits
