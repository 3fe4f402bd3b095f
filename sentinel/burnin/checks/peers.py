"""Compare a figure with those of equal GPUs: the median and the median absolute deviation. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from sentinel.burnin.checks.check import Judgement, Status, by_limits, untested
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


class Checksum(Protocol):
    """The checksum of a reference, in a record or in a report."""

    @property
    def key(self) -> str:
        """Everything that determines the bits."""

    @property
    def checksum(self) -> str:
        """The checksum."""

    @property
    def stored(self) -> str | None:
        """The checksum that was on record, or None if there was none."""


def by_key(checksums: Iterable[Checksum]) -> dict[str, set[str]]:
    """Collect the checksums of a GPU by their key; one each, on a good GPU."""
    found: dict[str, set[str]] = {}
    for one in checksums:
        found.setdefault(one.key, set()).add(one.checksum)
    return found


def stored_before(checksums: Iterable[Checksum]) -> dict[str, str]:
    """Collect the records of a node from before its run; one of the run is no authority."""
    everything = list(checksums)
    made_here = {one.key for one in everything if one.stored is None}
    return {one.key: one.stored for one in everything if one.stored and one.key not in made_here}


def count_votes(gpus: Iterable[Mapping[str, Collection[str]]]) -> dict[str, Counter[str]]:
    """Count by key how many GPUs computed each checksum.

    Args:
        gpus: The checksums of each GPU by key. A GPU that contradicts itself votes for each.
    """
    found: dict[str, Counter[str]] = {}
    for gpu in gpus:
        for key, values in gpu.items():
            found.setdefault(key, Counter()).update(set(values))
    return found


def judge_checksums(
    own: Mapping[str, Collection[str]],
    votes: Mapping[str, Counter[str]],
    stored: Mapping[str, str],
    limits: Limits,
) -> Judgement:
    """Judge by the limits how many golden checksums of a GPU are wrong.

    Args:
        own: Its checksums, by key.
        votes: From ``count_votes``, this GPU included.
        stored: The records from before the run, by key.
        limits: Of the number of wrong keys.
    """
    compared = [key for key in own if votes[key].total() > len(own[key])]
    reasons = [_why_wrong(own[key], votes[key], stored.get(key)) for key in sorted(own)]
    wrong = [f"{key}: {why}" for key, why in zip(sorted(own), reasons, strict=True) if why]
    if not compared and not wrong:
        return untested("no other GPU of this model has computed the same")
    text = f"{len(compared)} checksums are compared with those of other GPUs"
    return by_limits(
        len(wrong), limits, f"{len(wrong)} of {len(own)}: {wrong[0]}" if wrong else text
    )


def _why_wrong(own: Collection[str], votes: Counter[str], stored: str | None) -> str | None:
    """Explain why the checksum of a key is wrong, or return None.

    Without a majority, the record from before the run decides; without one, each may be wrong.
    """
    if len(own) > 1:
        return f"the GPU contradicts itself: {', '.join(sorted(own))}"
    (value,) = own
    most = max(votes.values())
    rivals = sorted(rival for rival, count in votes.items() if count == most and rival != value)
    if not rivals or (votes[value] == most and stored == value):
        return None
    text = f"{value}, as {votes[value] - 1:,} of {votes.total() - 1:,} other GPUs"
    if votes[value] < most:
        return f"{text}; {most:,} computed {rivals[0]}"
    if stored is not None:
        return f"{text}; the record from before the run is {stored}"
    return f"{text}; as many computed {rivals[0]}, and no majority says which is right"
