"""What an operator sets that lowers the rates of a GPU: its power limit and its clocks. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.burnin.record import GpuRecord

#: The reason of clocks that an operator has set.
LOCKED = "applications_clocks_setting"
#: Below this share of the default power limit, rates are not those of others.
SAME_LIMIT = 0.99


def _lowest_limit(record: GpuRecord) -> float | None:
    """Find the lowest power limit of a GPU before and in the run, in watts."""
    known = {sample.values.get("power_limit_w") for sample in record.telemetry}
    known.add(record.before.power_limit_w if record.before is not None else None)
    return min((float(value) for value in known if value), default=None)


def limit_share(record: GpuRecord) -> float | None:
    """Compute the power limit as a share of the default, or None if it is not lower."""
    limit = _lowest_limit(record)
    default = record.before.power_limit_default_w if record.before is not None else None
    share = limit / default if limit and default else 1.0
    return share if share < SAME_LIMIT else None


def limited_by(record: GpuRecord) -> str | None:
    """Explain by what an operator has set why no rate is that of others, or return None."""
    if (share := limit_share(record)) is not None:
        return f"CONFIG: its power limit is {share:.0%} of the default"
    reasons = [sample.values.get("reasons") or () for sample in record.telemetry]
    locked = sum(LOCKED in reason for reason in reasons)
    if 2 * locked > len(reasons):
        return f"CONFIG: its clocks are locked: {LOCKED} in {locked} of {len(reasons)} samples"
    return None


def limited_otherwise(own: GpuRecord, peers: Iterable[GpuRecord]) -> list[GpuRecord]:
    """Select the peers with another power limit, or of which only one has locked clocks."""
    limit, limited = _lowest_limit(own), limited_by(own)

    def same(peer: GpuRecord) -> bool:
        other = _lowest_limit(peer)
        near = limit is None or other is None or abs(other / limit - 1) <= 1 - SAME_LIMIT
        return near and (limited_by(peer) is None) == (limited is None)

    return [peer for peer in peers if peer is not own and not same(peer)]
