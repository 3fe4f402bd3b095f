"""What an operator sets that lowers the rates of a GPU: its power limit and its clocks. Pure."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
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


def _of_half(values: Sequence[float]) -> float:
    """Find what half of some readings do not exceed."""
    return sorted(values)[max(0, (len(values) - 2) // 2)]


def _limit(record: GpuRecord, phase: PhaseRecord) -> float | None:
    """Find the usual power limit of a GPU in a phase in watts; one not reached is the default."""
    before = record.before
    known = [value for value in phase.readings("power_limit_w") if value > 0]
    limit = _of_half(known) if known else before.power_limit_w if before else None
    default = before.power_limit_default_w if before else None
    power = phase.median("power_w")
    if limit and default and power is not None and power < _REACHED * limit:
        return max(limit, default)
    return limit


def is_locked(phase: PhaseRecord) -> bool:
    """Check whether clocks were locked in half of the readings of a phase."""
    readings = phase.judged(phase.telemetry)
    free = [LOCKED not in (one.values.get("reasons") or ()) for one in readings]
    return bool(free) and not _of_half(free)


def limit_share(record: GpuRecord, phase: PhaseRecord, usual: float | None = None) -> float | None:
    """Compute the power limit as a share of the usual one, or None if it is not lower.

    Args:
        record: The GPU.
        phase: The phase.
        usual: The limit of what it is compared with; the default limit if it is not known.
    """
    limit = _limit(record, phase)
    usual = usual or (record.before.power_limit_default_w if record.before is not None else None)
    share = limit / usual if limit and usual else 1.0
    return share if share < SAME_LIMIT else None


def left_by_limit(share: float) -> float:
    """Compute the share of a rate that a share of the power leaves at least."""
    lenient, margin = _MARGINS
    return max(lenient * share, margin * (share - _IDLE) / (1 - _IDLE))


def left_by_clock(clock: float | None, usual: float | None) -> float:
    """Compute the share of a rate that a locked clock leaves at least."""
    share = clock / usual if clock and usual else SAME_LIMIT
    return share * _MARGINS[1] if share <= SAME_LIMIT else 1.0


def explained_share(
    own: GpuRecord, phase: PhaseRecord, clock: float | None, limit: float | None = None
) -> float:
    """Compute which share of a rate a lower power limit and locked clocks leave at least.

    Args:
        own: The GPU.
        phase: The phase that is compared.
        clock: The clock of what it is compared with.
        limit: The power limit of that; the default limit if it is not known.
    """
    share, clocks = limit_share(own, phase, limit), phase.readings("sm_clock_mhz")
    shares = [1.0] if share is None else [left_by_limit(share)]
    if is_locked(phase):
        shares.append(left_by_clock(_of_half(clocks) if clocks else None, clock))
    return min(shares)


def limited_by(record: GpuRecord, phase: PhaseRecord) -> str | None:
    """Explain by what an operator has set why a rate is not that of others, or return None."""
    if (share := limit_share(record, phase)) is not None:
        return f"CONFIG: its power limit is {share:.0%} of the default"
    if is_locked(phase):
        return f"CONFIG: its clocks are locked: {LOCKED} in half of the readings"
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


def left_at_times(
    phase: PhaseRecord, reports: Iterable[Sample], like: Iterable[PhaseRecord]
) -> list[float]:
    """Compute what an operator's limits leave of each report's rate at least, by the last reading.

    Args:
        phase: The phase.
        reports: What was done in it.
        like: The phases whose rate is usual.
    """
    known, times = phase.telemetry, [one.at for one in phase.telemetry]
    usual = {}
    for name in ("power_limit_w", "sm_clock_mhz"):
        medians = [value for one in like if (value := one.median(name))]
        usual[name] = statistics.median(medians) if medians else None
    lasts = (max(0, bisect_right(times, report.at) - 1) for report in reports)
    return [_left_at(known[last].values, usual) if known else 1.0 for last in lasts]


def _left_at(reading: Mapping[str, Any], usual: Mapping[str, float | None]) -> float:
    found = [1.0]
    limit, power, other = (
        reading.get("power_limit_w"),
        reading.get("power_w"),
        usual["power_limit_w"],
    )
    if limit and other and limit < other * SAME_LIMIT and power is not None:
        found += [left_by_limit(limit / other)] if power >= _REACHED * limit else []
    if LOCKED in (reading.get("reasons") or ()):
        found.append(left_by_clock(reading.get("sm_clock_mhz"), usual["sm_clock_mhz"]))
    return min(found)
