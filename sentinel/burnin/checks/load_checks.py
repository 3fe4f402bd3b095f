"""The checks of what a GPU did under load: results, hangs, power, clocks and links. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from math import inf
from statistics import median
from typing import Any

from sentinel.burnin.checks.catalogue import ACTIONS, Table
from sentinel.burnin.checks.check import (
    Judgement,
    Limits,
    Severity,
    Status,
    Unjudged,
    by_action,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.evidence import known_value, read
from sentinel.burnin.checks.load_evidence import (
    FEW_ERRORS,
    READINGS_S,
    WORST_SHARE,
    LoadEvidence,
    lasting_low,
    steady_phases,
)
from sentinel.burnin.checks.operator_limits import limited_by
from sentinel.burnin.record import GpuRecord, Sample
from sentinel.protocol.stressor import FindingPlace
from sentinel.protocol.views import FAULTY

TABLE = Table()

#: The rate of corrected errors is that of so many seconds of load.
_MINUTE_S = 60.0
#: Readings of the power are so much of the limit at most; the energy of a run is so much of their
#: sum, or more.
_HIGHEST_POWER, _LEAST_ENERGY = 2.0, 0.5
#: So many readings of the power in a row, in milliwatts, are not the same unless an operator limits
#: it. An H200 from idle to load read the same three times in a row at most (150 readings).
_FROZEN = 60
#: A rise of the power by so many watts, or by this share of the default limit, for which the card
#: is cooled, changes any temperature; a share of a low power may change it by 2 degrees only.
_RISE_W, _RISE_SHARE = 200.0, 0.3
#: It lasts for so many readings, or half of them: a sensor follows within seconds, and the memory's
#: is read at another moment than the power.
_RISEN_READINGS = 10
#: What CUDA calls a double-bit error in the memory of this GPU (cudaErrorECCUncorrectable).
_UNCORRECTABLE = "uncorrectable ECC error"
#: A temperature that varies by so many degrees Celsius at most has not changed.
_STUCK_C = 2.0
#: So many readings at the end of a phase show how warm the GPU was before the next one.
_BEFORE = 10


# --- results ---------------------------------------------------------------------------------


def wrong_results(record: GpuRecord) -> int:
    """Count the wrong results of a GPU, without differences from golden checksums."""
    # A lost event must not hide an error, and a phase does not count those of its stressor's end.
    reported = sum(int(event["errors"]) for event in record.named("stressor.mismatch"))
    # A later end of the same phase does not take back what an earlier one has counted.
    ends = [event for event in record.named("burnin.phase_ended") if event["errors"] > 0]
    ended = sum({event["phase"]: int(event["errors"]) for event in ends}.values())
    counted = max(ended, sum(phase.work.errors for phase in record.phases))
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
    detail = found[0].get("detail")
    return by_limits(
        len(found), limits, f"wrong: {places}; first: {first}{f', {detail}' if detail else ''}"
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
    """Count the failures of stressors that are no hangs; CUDA's word for a fault is one."""
    kinds = {"crash", "workload", "stuck", "returned", "garbage"}
    failed = [event for event in _failures(evidence.record) if event.get("kind") in kinds]
    faults = [event for event in failed if _UNCORRECTABLE in event["reason"]]
    first = next(iter(faults or failed), None)
    text = "" if first is None else f"{first['kind']}: {first['reason']}"
    found = by_limits(len(failed), limits, text)
    if not faults:
        return found
    found = replace(found, status=Status.FAIL, severity=Severity.ISOLATE)
    return replace(found, action="WORKFLOW_XID_48: reset the GPU; if it comes back, replace it.")


# --- corrected errors ------------------------------------------------------------------------


@TABLE.check("ecc.corrected_load")
def _ecc_corrected_load(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Judge the corrected errors under own load, and their rate."""
    name = "ecc_corrected_total"
    counted = [*evidence.curve(name), (inf, read(evidence.now, name))]
    following = {at: int(value) for (at, _), (_, value) in pairwise(counted)}
    before, life = evidence.record.before, "ecc_corrected_lifetime_total"
    lasting = (getattr(evidence.now, life) or 0) - (getattr(before, life, None) or 0)
    by_phase: dict[str, int] = {}
    errors: list[int] = []
    # The seconds of load and the errors in them, after each reading.
    curve = [(0.0, 0)]
    for phase, first, last in evidence.record.under_load(name):
        begin, end = first.values[name], last.values[name]
        is_spike = begin <= following[last.at] < end and end - begin > lasting
        if is_spike and len(errors) < FEW_ERRORS:
            # A reading above both its neighbours: none is reset while it is in use.
            errors.append(end)
            end = following[last.at]
        # A counter that went backwards was reset: the errors in between are not known.
        grown = max(0, end - begin)
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
    text += "".join(f"; not counted as implausible: {error:,}" for error in errors)
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
    whole = [work for work in tests if work.retained is None] or tests
    shares = [work.share for work in whole if work.share is not None]
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


def _must_be_plausible(evidence: LoadEvidence) -> None:
    """Check the readings of the power against the limit and the counter of energy.

    Raises:
        Unjudged: They contradict it.
    """
    record = evidence.record
    powers = evidence.samples("power_w")
    limit = max(evidence.samples("power_limit_w"))
    high = sum(power > _HIGHEST_POWER * limit for power in powers)
    if high > len(powers) * WORST_SHARE:
        raise Unjudged(untested(f"power_w read {max(powers):,.0f} W at a limit of {limit:,.0f} W"))
    if evidence.now.is_simulated:
        return  # its counter grows by a mean power, whatever its readings are
    free = [phase for phase in record.phases if not limited_by(record, phase)]
    loaded = [phase for phase in steady_phases(record) if phase in free]
    same = [len(list(run)) for one in loaded for _, run in groupby(one.readings("power_w"))]
    if len(set(powers)) == 1 and len(free) == len(record.phases):
        same.append(len(powers))
    if max(same, default=0) >= _FROZEN:
        raise Unjudged(untested(f"power_w read the same {max(same)} times in a row"))
    try:
        grown = evidence.growth("energy_j")
    except Unjudged:
        return
    sampled = sum(
        min(last.at - first.at, READINGS_S) * last.values["power_w"]
        for _, first, last in record.under_load("power_w")
    )
    if grown.least < sampled * _LEAST_ENERGY and grown.unknown is None:
        text = f"power_w adds up to {sampled:,.0f} J, and energy_j grew by {grown.least:,.0f} J"
        raise Unjudged(untested(text))


@TABLE.check("load.memory_clock")
def _load_memory_clock(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """Compare the lowest memory clock with the maximum."""
    name = "memory_clock_maximum_mhz"
    own = read(evidence.now, name)
    maximum = max(own, *(getattr(twin, name) or 0 for twin in evidence.twins), 0)
    if not maximum:
        return untested(f"{name} is 0")
    clock = min([evidence.under_load("memory_clock_mhz"), *evidence.elsewhere("memory_clock_mhz")])
    return by_limits(round(clock / maximum, 4), limits, f"{clock:g} of {maximum} MHz under load")


@TABLE.check("temperature.sensor")
def _temperature_sensor(evidence: LoadEvidence, _: Limits) -> Judgement:
    """Judge whether the temperatures of GPU and memory change with the power.

    Over the whole run, and that of the GPU from the end of one phase into a steady one.
    """
    record, name = evidence.record, "memory_temperature_c"
    values = evidence.plausible("temperature_c", record.telemetry)
    powers = _known("power_w", record.telemetry)
    if not any(values):
        return untested("no temperature was read" if not values else "it read 0 C all the time")
    evidence.must_be_possible("temperature_c")
    of_memory = [heat for heat in evidence.plausible(name, record.telemetry) if heat]
    if of_memory:  # it may be as warm in every phase, and is cooler before the run
        of_memory += [heat for one in evidence.readings for heat in known_value(one, name)]
    drawn = sorted(power for power in powers if power) or [0.0]
    rise = drawn[-min(_RISEN_READINGS, (len(drawn) + 1) // 2)] - drawn[0]
    judged = [("it", values, rise), ("its memory", of_memory or values, rise)]
    judged += _warmed(evidence)
    full = evidence.now.power_limit_default_w or drawn[-1]
    texts = [
        f"{min(heats):g} to {max(heats):g} C while the power varied by {risen:,.0f} W"
        for _, heats, risen in judged
    ]
    for (who, heats, risen), text in zip(judged, texts, strict=True):
        has_risen = risen >= min(_RISE_W, _RISE_SHARE * full) > 0
        if has_risen and max(heats) - min(heats) <= _STUCK_C:
            return untested(f"{who} read {text}")
    return Judgement(status=Status.PASS, value=max(values) - min(values), evidence=texts[0])


def _warmed(evidence: LoadEvidence) -> Iterator[tuple[str, list[float], float]]:
    """Yield the temperatures of each steady phase and just before it, and the rise of the power."""
    for before, phase in pairwise(evidence.record.phases):
        last = before.telemetry[-_BEFORE:]
        cool, hot = (_known("power_w", part) for part in (last, phase.telemetry))
        heats = evidence.plausible("temperature_c", [*last, *phase.telemetry])
        if phase.phase.steady and cool and hot and heats:
            yield f"it, in {phase.phase.name},", heats, median(hot) - median(cool)


def _known(name: str, samples: Iterable[Sample]) -> list[float]:
    """Select the known values of a reading."""
    return [float(one.values[name]) for one in samples if one.values.get(name) is not None]
