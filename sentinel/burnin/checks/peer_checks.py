"""Compare the rates and temperatures of a GPU with equal ones and with references. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace

from sentinel.burnin.checks.catalogue import ACTIONS, Table
from sentinel.burnin.checks.check import (
    Judgement,
    Limits,
    Status,
    by_action,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.load_evidence import NO_STEADY, LoadEvidence, lowest, steady_phases
from sentinel.burnin.checks.measures import format_measure
from sentinel.burnin.checks.operator_limits import (
    explained_share,
    left_at_times,
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


def is_compared(phase: Phase, unit: str) -> bool:
    """Check whether rates of a phase are compared: of products, or of copies of the memory.

    Args:
        phase: The phase.
        unit: ``flops`` or ``bytes``.
    """
    if unit == "bytes":
        return is_copy(phase.workload)
    return phase.steady or phase.workload.partition(":")[0] == _PRODUCTS


def compared_phases(record: GpuRecord, unit: str) -> list[PhaseRecord]:
    """Select the phases with rates that are compared, as :func:`is_compared` has it."""
    return [one for one in record.phases if is_compared(one.phase, unit) and one.rates(unit)]


def rates_of(phases: Iterable[PhaseRecord], unit: str) -> list[float]:
    """Compute the median rate of each phase, over its stretches that count; without any, none."""
    return [statistics.median(rates) for phase in phases if (rates := phase.rates(unit))]


def _rate(phase: PhaseRecord, unit: str) -> float:
    """Compute the median rate of a phase; 0.0 without a stretch that counts."""
    return next(iter(rates_of([phase], unit)), 0.0)


def equals_of(evidence: LoadEvidence, phases: Iterable[PhaseRecord]) -> list[PhaseRecord]:
    """Select the phases of GPUs that nothing set lets be faster than this one."""
    return [phase for phase in phases if id(phase) not in evidence.limited_less]


def _beyond_excuse(evidence: LoadEvidence, unit: str, why: str, limits: Limits) -> Judgement | None:
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
        # A lock that lowers no clock excuses nothing, and good cards differ, too.
        if share < min(explained_share(own, phase, usual), limits["fail"].value):
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
    limited = _limited_by(own)
    why = limited or "CONFIG: the power limits or clocks of its peers differ"
    beyond = _beyond_excuse(evidence, unit, why, limits) if unlike else None
    found += [beyond] if beyond is not None else []
    if found:
        return min(found, key=lambda one: (one.status.rank, one.value or 0.0))
    if unlike:
        return untested(why)
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
            like = [max(same, key=lambda one: _rate(one, unit))]
            usual = _rate(like[0], unit)
            together = _at_the_same_time(evidence, phase)
            if limited_by(evidence.record, phase) is None:
                together = equals_of(evidence, together)
            peers = peers_of(rates_of(together, unit))
            if peers is not None and peers.median > usual:
                like, usual = together, peers.median
            found.append(_judge_worst(phase, unit, usual, like, limits))
    if not found:
        return untested(NO_STEADY)
    return min(found, key=lambda one: (one[0].status.rank, one[1]))[0]


def _judge_worst(
    phase: PhaseRecord, unit: str, usual: float, like: list[PhaseRecord], limits: Limits
) -> tuple[Judgement, float]:
    """Judge the worst moments of a phase; return the share of the lowest rates as well."""
    reports = [one for one in phase.judged(phase.reports) if one.values["seconds"] > 0]
    times = [float(one.values["seconds"]) for one in reports]
    shares = [one.values[unit] / s / usual for one, s in zip(reports, times, strict=True)]
    of = f"of {format_measure(f'{unit}_per_s', usual)}"
    plain, low = _judge_shares(phase, shares, times, of, limits)
    if plain.status is Status.PASS:
        return plain, low
    left = left_at_times(phase, reports, like)
    shares = [share / part for share, part in zip(shares, left, strict=True)]
    excused, least = _judge_shares(phase, shares, times, of, limits)
    if excused.status is plain.status:
        return excused, least
    text = f"{plain.evidence}; CONFIG: a lower power limit or locked clocks explain it"
    return by_action(replace(plain, status=Status.WARN, evidence=text), ACTIONS["limited"]), low


def _judge_shares(
    phase: PhaseRecord, shares: list[float], times: list[float], of: str, limits: Limits
) -> tuple[Judgement, float]:
    """Judge rates as shares of what is usual, each of so many seconds; return a low one as well."""
    low, quarter = lowest(shares), sorted(shares)[len(shares) // 4]
    slow = limits["fail_quarter"]
    longest = current = 0.0
    for seconds, share in zip(times, shares, strict=True):
        current = current + seconds if slow.broken_by(share) else 0.0
        longest = max(longest, current)
    text = f"{phase.phase.name}: 5 % of the time below {low:.1%} {of}"
    text += f"; longest below {slow.value:g}: {longest:,.0f} s"
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
            least = limits["fail"].value * explained_share(evidence.record, phase, fastest)
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
