"""What is usual among equal GPUs, and the judgement of a figure by it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sentinel.burnin.checks.check import Judgement, Limits, by_limits
from sentinel.burnin.checks.measures import format_measure

#: GPUs of one model have a median to trust from this number on; fewer are compared with the best.
MIN_PEERS = 4
#: The deviation of rates is taken for at least this share of their median, as five good H100s had
#: it: eight cards that happen to be equal would make any difference look large.
MIN_DEVIATION = 0.023
#: Of a normal distribution: the standard deviation is so many median absolute deviations
#: (Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993).
NORMAL = 1.4826
#: Where most GPUs are slow, the second best of them shows it: of good cards, it is above the median
#: by less than the reciprocal.
_OF_SECOND = 0.9


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
    known = [value for value in values if value is not None]
    if len(known) < MIN_PEERS:
        return None
    median = statistics.median(known)
    deviation = statistics.median(abs(value - median) for value in known) * NORMAL
    return Peers(count=len(known), median=median, deviation=max(deviation, least * abs(median)))


def usual_rate(rates: Sequence[float]) -> float:
    """Compute what is usual among MIN_PEERS rates or more: the median, unless most are slow."""
    return max(statistics.median(rates), _OF_SECOND * sorted(rates)[-2])


def judge_rate(own: float, peers: Peers, limits: Limits, unit: str = "flops") -> Judgement:
    """Judge a rate against those of equal GPUs.

    Args:
        own: The rate, in FLOP/s or B/s.
        peers: What is usual, from ``peers_of``.
        limits: ``fail`` and ``warn`` of the share of the median.
        unit: ``flops`` or ``bytes``.
    """
    ratio = own / peers.median if peers.median else 1.0
    rates = (format_measure(f"{unit}_per_s", rate) for rate in (own, peers.median))
    text = f"; the median of {peers.count:,} is ".join(rates)
    if peers.deviation:
        text += f"; z {(own - peers.median) / peers.deviation:.1f}"
    return by_limits(round(ratio, 4), limits, text)


def judge_temperature(own: float, peers: Peers, limits: Limits, less: float = 0.0) -> Judgement:
    """Judge a temperature against those of equal GPUs.

    Args:
        own: The temperature, in degrees Celsius.
        peers: What is usual, from ``peers_of``.
        limits: Of the degrees above the median.
        less: How many degrees below the median its lower power lets expect.
    """
    text = f"{own:g} C; the median of {peers.count:,} GPUs is {peers.median:g} C"
    return by_limits(round(own - peers.median + less, 4), limits, text)
