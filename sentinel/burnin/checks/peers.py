"""Compare a figure with those of equal GPUs: the median and the median absolute deviation. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from sentinel.burnin.checks.check import Judgement, Status, by_limits
from sentinel.burnin.checks.measures import format_measure
from sentinel.burnin.checks.thresholds import Limits, above, below

#: GPUs of one model are compared from this number on: fewer have no median to trust.
MIN_PEERS = 4
#: The deviation of rates is taken for at least this share of their median: eight equal GPUs would
#: make any difference look large.
MIN_DEVIATION = 0.005
#: Of a normal distribution: the standard deviation is so many median absolute deviations
#: (Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993; their limit is 3.5).
NORMAL = 1.4826

#: The limits of a rate against those of equal GPUs, for ``judge_rate``, and where they are from.
RATE_LIMITS: Limits = {
    "fail": below(0.90),
    "fail_with_deviation": below(0.95),
    "deviation": below(-3.5),
    "warn": below(0.95),
}
RATE_SOURCE = "gpu-fryer: 0.90; Megatron-LM, stas00/ml-engineering: 5 % alone is normal"
#: Those of a temperature, for ``judge_temperature``.
TEMPERATURE_LIMITS: Limits = {"warn": above(15)}


@dataclass(frozen=True, kw_only=True)
class Peers:
    """What is usual among equal GPUs."""

    count: int
    median: float
    #: The standard deviation, estimated by the median absolute deviation.
    deviation: float


def peers_of(values: Iterable[float | None], least: float = 0.0) -> Peers | None:
    """Compute what is usual, or None if fewer than MIN_PEERS figures are known.

    Args:
        values: The figures of all GPUs; None where one is not known.
        least: The smallest deviation, as a share of the median.
    """
    known = [one for one in values if one is not None]
    if len(known) < MIN_PEERS:
        return None
    median = statistics.median(known)
    deviation = statistics.median(abs(one - median) for one in known) * NORMAL
    return Peers(count=len(known), median=median, deviation=max(deviation, least * abs(median)))


def judge_rate(own: float, peers: Peers, limits: Limits, explained: str) -> Judgement:
    """Judge a rate against those of equal GPUs.

    Args:
        own: The rate, in FLOP/s.
        peers: What is usual, from ``peers_of`` with MIN_DEVIATION.
        limits: ``fail``, ``warn`` and ``fail_with_deviation`` of the share of the median;
            ``deviation`` of the number of standard deviations.
        explained: What explains a lower rate, or empty; it makes a deviation a warning.
    """
    z = (own - peers.median) / peers.deviation if peers.deviation else 0.0
    ratio = own / peers.median if peers.median else 1.0
    status = Status.PASS
    if limits["warn"].broken_by(ratio):
        status = Status.WARN
    if limits["fail_with_deviation"].broken_by(ratio) and limits["deviation"].broken_by(z):
        status = Status.WARN if explained else Status.FAIL
    if limits["fail"].broken_by(ratio):
        status = Status.FAIL
    text = (
        f"{format_measure('flops_per_s', own)}; the median of {peers.count:,} is"
        f" {format_measure('flops_per_s', peers.median)}; z {z:.1f}"
    )
    text += f"; {explained}" if explained else ""
    return Judgement(status=status, value=round(ratio, 4), evidence=text)


def judge_temperature(own: float, peers: Peers, limits: Limits) -> Judgement:
    """Judge a temperature against those of equal GPUs.

    Args:
        own: The temperature, in degrees Celsius.
        peers: What is usual, from ``peers_of``.
        limits: Of the degrees above the median.
    """
    text = f"{own:g} C; the median of {peers.count:,} GPUs is {peers.median:g} C"
    return by_limits(round(own - peers.median, 4), limits, text)


# --- checksums -------------------------------------------------------------------------------


class Vote(Enum):
    """What the checksums of equal GPUs say of one of them."""

    AGREES = auto()
    #: More GPUs computed another one.
    OUTVOTED = auto()
    #: As many GPUs computed another one, and nothing says which is right.
    TIED = auto()
    #: As many GPUs computed another one, and that is on record.
    AGAINST_RECORD = auto()


def vote_on(value: str, votes: Mapping[str, int], stored: str | None) -> tuple[Vote, str]:
    """Decide by majority whether a checksum is right, and name its strongest rival.

    Args:
        value: The checksum.
        votes: How many GPUs computed each checksum, this GPU too.
        stored: The record from before the run, or None; it decides where no majority does.

    Returns:
        The decision, and the rival; empty if there is none.
    """
    most = max(votes.values())
    rivals = sorted(one for one, count in votes.items() if count == most and one != value)
    if not rivals:
        return Vote.AGREES, ""
    if votes[value] < most:
        return Vote.OUTVOTED, rivals[0]
    if stored is None:
        return Vote.TIED, rivals[0]
    return (Vote.AGREES if stored == value else Vote.AGAINST_RECORD), rivals[0]


def count_votes(found: Collection[Collection[str]]) -> Counter[str]:
    """Count how many GPUs computed each checksum; one that contradicts itself votes for each."""
    return Counter(one for values in found for one in values)
