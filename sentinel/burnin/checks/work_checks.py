"""The checks of what each phase did: given up, recorded, and as much as on equal GPUs. Pure."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import (
    Judgement,
    Limits,
    Status,
    by_limits,
    describe,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.load_evidence import NO_STEADY, LoadEvidence, steady_phases
from sentinel.burnin.checks.peer_checks import equals_of
from sentinel.burnin.checks.peers import MIN_PEERS, usual_rate
from sentinel.burnin.former_runs import is_copy
from sentinel.burnin.record import GpuRecord, PhaseRecord, Sample
from sentinel.protocol.stressor import LinkPart

TABLE = Table()

#: So many other GPUs of the model, or more, must have done what one could not.
_OTHERS = 3
#: So much of the time that counts of a steady phase, and of another one, must be in its samples.
_RECORDED_SHARES = {True: 0.7, False: 0.5}
#: Of a phase of fewer intervals between samples, a sample is enough, or none is needed.
_SHORT, _VERY_SHORT = 15, 5
#: No reading is missing for longer, in seconds.
_GAP_S = 20.0
#: What not each GPU of a group measures: far memory is that of hosts with several NUMA nodes.
_NOT_ALL = frozenset({LinkPart.TO_DEVICE_REMOTE, LinkPart.TO_HOST_REMOTE})
#: Readings of which one that answered once must answer again.
_READ = (
    *("power_w", "temperature_c", "sm_clock_mhz", "memory_temperature_c"),
    *("memory_clock_mhz", "pcie_width", "pcie_generation", "reasons"),
)
#: The units of work, and what is said of them.
_UNITS = ("flops", "bytes", "iterations", "checks")


@TABLE.check("phase.given_up")
def _phase_given_up(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Count the phases that were given up here and done on a peer."""
    found: list[tuple[int, str]] = []
    for number, phase in enumerate(evidence.record.phases):
        why = phase.work.given_up
        others = [
            peer.phases[number] for peer in evidence.peers if peer.uuid != evidence.record.uuid
        ]
        done = sum(other.complete for other in others)
        if why is not None and not phase.phase.together and done and done == len(others):
            found.append((done, f"{phase.phase.name}: {why}"))
    judged = by_limits(len(found), limits, "; ".join(text for _, text in found))
    if found and max(found)[0] >= _OTHERS:
        return replace(judged, status=Status.FAIL)
    return judged


@TABLE.check("load.recorded")
def _load_recorded(evidence: LoadEvidence, _: Limits) -> Judgement:
    """Judge the share of the time that the samples cover."""
    record = evidence.record
    if not steady_phases(record):
        return untested(NO_STEADY)
    readings = record.telemetry
    gaps = sorted(last.at - first.at for first, last in pairwise(readings))
    interval = gaps[len(gaps) // 2] if gaps else 0.0
    # What slows the clocks is counted, too, and judged by that.
    counters = [{**vars(one), "reasons": None} for one in evidence.readings]
    everything = [*counters, *(one.values for one in readings)]
    answered = [name for name in _READ if any(one.get(name) is not None for one in everything)]
    shares = []
    for number, phase in enumerate(record.phases):
        if phase.complete:
            found = _recorded_shares(phase, interval, answered or [*_READ])
            if phase.phase.together:
                found["links"] = _links_share(evidence, number)
            least = _RECORDED_SHARES[phase.phase.steady]
            shares += [
                (share < least, share, f"{what} of {phase.phase.name}")
                for what, share in found.items()
            ]
    is_low, share, what = max(
        shares, key=lambda one: (one[0], -one[1]), default=(True, 0.0, "work")
    )
    text = f"{share:.0%} of the {what} were recorded"
    if is_low:
        return untested(text)
    return Judgement(status=Status.PASS, value=round(share, 4), evidence=text)


def _recorded_shares(phase: PhaseRecord, interval: float, names: list[str]) -> dict[str, float]:
    """Compute how much of a phase its samples cover, by what they are of."""
    seconds = sum(last - first for first, last in phase.stretches)
    reports = [report for report in phase.judged(phase.reports) if _has_work(phase, report)]
    readings = phase.judged(phase.telemetry)
    if seconds < _SHORT * interval:
        some = {"work": float(bool(reports)), "readings": float(bool(readings))}
        if phase.phase.steady:
            return some
        return {} if seconds < _VERY_SHORT * interval else {"work": some["work"]}
    found = {"work": sum(float(one.values["seconds"]) for one in reports) / seconds}
    moments = {"work": [one.at for one in reports]}
    for name in names:
        moments[name] = [one.at for one in readings if _is_read(one.values.get(name))]
        found[name] = len(moments[name]) * interval / seconds
    for name, known in moments.items():
        gap = _longest_gap(phase, known)
        if gap > max(_GAP_S, _VERY_SHORT * interval):
            found[f"{name} for {gap:,.0f} s"] = 0.0
    return {what: min(1.0, share) for what, share in found.items()}


def _is_read(value: object) -> bool:
    """Check whether a reading was one: a GPU at work has no power, heat, clock or link of 0."""
    return value is not None and (not isinstance(value, int | float) or value > 0)


def _longest_gap(phase: PhaseRecord, known: list[float]) -> float:
    """Find the longest time without a reading within a stretch that counts."""
    stretches = [
        [first, *(at for at in known if first < at < last), last] for first, last in phase.stretches
    ]
    return max(end - begin for moments in stretches for begin, end in pairwise(moments))


def _has_work(phase: PhaseRecord, report: Sample) -> bool:
    """Check whether a report has the work of its phase: products, or bytes of a copy."""
    if _name_of(phase) == "gemm":
        return bool(report.values["flops"])
    return not is_copy(phase.phase.workload) or bool(report.values["bytes"])


def _links_share(evidence: LoadEvidence, number: int) -> float:
    """Compute how many links were measured of those that a peer in as large a group measured."""

    def links(record: GpuRecord) -> tuple[int, set[tuple[str, int | None]]]:
        rows = [link.values for link in record.phases[number].links]
        is_real = not evidence.now.is_simulated
        rows = [row for row in rows if row["checked"] and (row["rate"] is not None or not is_real)]
        size = max((int(row["size"]) for row in rows), default=0)
        return size, {(row["part"], row["peer"]) for row in rows if row["part"] not in _NOT_ALL}

    size, own = links(evidence.record)
    others = [links(peer) for peer in evidence.peers]
    most = max((len(found) for other, found in others if other == size or not size), default=0)
    of_host = {part for part, peer in own if peer is None} - {LinkPart.ALL_REDUCE}
    is_links = _name_of(evidence.record.phases[number]) == "links"
    # One direction alone is no measurement of the link to the host, which each GPU has.
    ends = {LinkPart.TO_DEVICE, LinkPart.TO_HOST} & of_host
    if len(ends) == 1 or (is_links and not of_host):
        return 0.0
    return float(len(own) == most)


def _name_of(phase: PhaseRecord) -> str:
    return phase.phase.workload.partition(":")[0]


@TABLE.check("work.peers")
def _work_peers(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Compare the work per second with that of the peers."""
    if evidence.now.is_simulated:
        return not_applicable("a simulated GPU works on the host's cores")
    found = []
    for number, phase in enumerate(evidence.record.phases):
        together = [peer.phases[number] for peer in evidence.peers]
        equals = [one for one in equals_of(evidence, together) if _is_whole(one)]
        if len(equals) < 2 or not any(one is phase for one in equals):  # noqa: PLR2004 - a pair
            continue
        for unit in _UNITS:
            rates = [_done(one, unit) for one in equals]
            few = len(rates) < MIN_PEERS
            usual = max(rates) if few else usual_rate(rates)
            if usual:
                share, of = _done(phase, unit) / usual, "best" if few else "median"
                text = f"{unit} of {phase.phase.name}: {share:.2f} of the {of} of {len(rates)}"
                found.append((share, few, text))
    if not found:
        return not_applicable("no equal GPU did the same without an interruption")
    share, few, text = min(found)
    if few:
        warn = {"warn": limits["warn"]}
        rule = f"with fewer than {MIN_PEERS} equal GPUs: {describe(warn)}"
        return replace(by_limits(round(share, 4), warn, text), threshold=rule)
    return by_limits(round(share, 4), limits, text)


def _is_whole(phase: PhaseRecord) -> bool:
    """Check whether the work of a phase can be compared.

    What is interrupted begins again. Units compile their kernels at times of their own.
    """
    is_even = not phase.phase.together and _name_of(phase) != "units"
    return is_even and phase.complete and not phase.work.interruptions


def _done(phase: PhaseRecord, unit: str) -> float:
    """Compute what was done in a second, warming up included: the lesser of total and samples."""
    seconds = phase.work.seconds + phase.work.uncounted
    sampled = sum(float(report.values["seconds"]) for report in phase.reports)
    counted = sum(float(report.values.get(unit) or 0.0) for report in phase.reports)
    rates = [getattr(phase.work, unit) / seconds] if seconds else []
    rates += [counted / sampled] if sampled else []
    return min(rates, default=0.0)
