"""What an operator sets that lowers the rates of a GPU: its power limit and its clocks. Pure."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

from sentinel.burnin.record import GpuRecord, PhaseRecord, Sample

#: The reason of clocks that an operator has set.
LOCKED = "applications_clocks_setting"
#: Below this share of the default power limit, rates are not those of others.
SAME_LIMIT = 0.99
#: A GPU that uses less of its limit is slow for another reason.
_REACHED = 0.75
#: This share of the power does no work; the rest does it in proportion, at worst.
_IDLE = 0.15
#: What a lower limit leaves of the rate is not known better; that of a lower clock is.
_MARGINS = (0.8, 0.9)


def _limit(record: GpuRecord, phase: PhaseRecord) -> float | None:
    """Find the usual power limit of a GPU in a phase in watts; one not reached is the default."""
    before = record.before
    known = [value for value in phase.readings("power_limit_w") if value > 0]
    limit = statistics.median(known) if known else before.power_limit_w if before else None
    default = before.power_limit_default_w if before else None
    power = phase.median("power_w")
    if limit and default and power is not None and power < _REACHED * limit:
        return max(limit, default)
    return limit


def is_locked(phase: PhaseRecord) -> bool:
    """Check whether clocks were locked in most readings of a phase."""
    reasons = [sample.values.get("reasons") or () for sample in phase.telemetry]
    return 2 * sum(LOCKED in one for one in reasons) > len(reasons)


def limit_share(record: GpuRecord, phase: PhaseRecord) -> float | None:
    """Compute the power limit as a share of the default, or None if it is not lower."""
    limit = _limit(record, phase)
    default = record.before.power_limit_default_w if record.before is not None else None
    share = limit / default if limit and default else 1.0
    return share if share < SAME_LIMIT else None


def left_by_limit(share: float) -> float:
    """Compute the share of a rate that a share of the power leaves at least."""
    lenient, margin = _MARGINS
    return max(lenient * share, margin * (share - _IDLE) / (1 - _IDLE))


def left_by_clock(share: float) -> float:
    """Compute the share of a rate that a share of the clock leaves at least."""
    return min(1.0, share) * _MARGINS[1]


def limited_by(record: GpuRecord, phase: PhaseRecord) -> str | None:
    """Explain by what an operator has set why a rate is not that of others, or return None."""
    if (share := limit_share(record, phase)) is not None:
        return f"CONFIG: its power limit is {share:.0%} of the default"
    if is_locked(phase):
        return f"CONFIG: its clocks are locked: {LOCKED} in most readings"
    return None


def limited_less(own: GpuRecord, peers: Iterable[GpuRecord]) -> list[PhaseRecord]:
    """Select the phases of peers with a higher power limit, or without locks of the own clocks."""
    others = [peer for peer in peers if peer is not own]
    found = []
    for number, phase in enumerate(own.phases):
        limit, locked = _limit(own, phase), is_locked(phase)
        for peer in others:
            other = peer.phases[number]
            higher = _limit(peer, other)
            if (limit and higher and limit < higher * SAME_LIMIT) or (
                locked and not is_locked(other)
            ):
                found.append(other)
    return found


def left_at_times(phase: PhaseRecord, reports: Iterable[Sample]) -> list[float]:
    """Compute what a limit that was lowered in a phase leaves of the rate of each report."""
    known = [one for one in phase.telemetry if one.values.get("power_limit_w")]
    usual = phase.median("power_limit_w")
    times = [one.at for one in known]
    found = []
    for report in reports:
        last = bisect_right(times, report.at) - 1
        found.append(_left_at(known[max(0, last)].values, usual) if usual and known else 1.0)
    return found


def _left_at(reading: Mapping[str, Any], usual: float) -> float:
    limit, power = reading["power_limit_w"], reading.get("power_w")
    if limit >= usual * SAME_LIMIT or power is None or power < _REACHED * limit:
        return 1.0
    return left_by_limit(limit / usual)
