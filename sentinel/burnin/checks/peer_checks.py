"""Compare a GPU with equal ones, with references and with its own past. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from sentinel.burnin.checks import basis
from sentinel.burnin.checks.check import (
    Judgement,
    Limits,
    Status,
    Table,
    above,
    below,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.load_checks import (
    MIN_POWER_SHARE,
    NO_STEADY,
    LoadEvidence,
    findings,
    power_share,
    steady_phase,
)
from sentinel.burnin.checks.measures import format_measure
from sentinel.burnin.record import Checksum, GpuRecord, PhaseRecord
from sentinel.burnin.run_folder import Former, is_copy
from sentinel.protocol.stressor import FindingPlace

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


# --- checksums -------------------------------------------------------------------------------


def by_key(checksums: Iterable[Checksum]) -> dict[str, set[str]]:
    """Collect the checksums of a GPU by their key; one each, on a good GPU."""
    found: dict[str, set[str]] = {}
    for checksum in checksums:
        found.setdefault(checksum.key, set()).add(checksum.checksum)
    return found


def stored_before(checksums: Iterable[Checksum]) -> dict[str, str]:
    """Collect the records of a node from before its run; one of the run is no authority."""
    everything = list(checksums)
    made_here = {checksum.key for checksum in everything if checksum.stored is None}
    return {
        checksum.key: checksum.stored
        for checksum in everything
        if checksum.stored and checksum.key not in made_here
    }


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


TABLE = Table()
check = TABLE.check

#: A card is compared with so many earlier runs of its own or more, at a temperature that differs by
#: at most so many degrees Celsius.
MIN_RUNS = 3
SIMILAR_C = 5.0
#: Below this share of the default power limit, rates are not those of others.
SAME_LIMIT = 0.99


# --- rates and temperatures ------------------------------------------------------------------


def _at_the_same_time(evidence: LoadEvidence) -> list[PhaseRecord]:
    """Select the steady phases of peers whose last stretch covers at least half of this GPU's."""
    own = steady_phase(evidence.record)
    if own is None:
        return []
    begin, end = own.stretches[-1]
    found = [phase for peer in evidence.peers if (phase := steady_phase(peer)) is not None]

    def common(phase: PhaseRecord) -> float:
        first, last = phase.stretches[-1]
        return min(end, last) - max(begin, first)

    return [phase for phase in found if common(phase) >= (end - begin) / 2]


def _rate(phase: PhaseRecord | None) -> float | None:
    """Compute the median rate of the stretches that count."""
    rates = phase.rates("flops") if phase is not None else []
    return statistics.median(rates) if rates else None


def _copy_rate(record: GpuRecord) -> float | None:
    """Compute the median bandwidth of the last phase that only copies."""
    phases = [phase for phase in record.phases if is_copy(phase.phase.workload)]
    rates = [rates for phase in phases if (rates := phase.rates("bytes"))]
    return statistics.median(rates[-1]) if rates else None


def _limited(record: GpuRecord) -> str | None:
    """Explain by a lower power limit why no rate must be judged, or return None."""
    before = record.before
    if before is not None and before.power_limit_w and before.power_limit_default_w:
        limit = before.power_limit_w / before.power_limit_default_w
        if limit < SAME_LIMIT:
            return f"its power limit is {limit:.0%} of the default"
    return None


def _unfit(record: GpuRecord) -> str | None:
    """Explain why the rate of a GPU must not be judged, or return None."""
    limited = _limited(record)
    if limited is not None:
        return limited
    share = power_share(record)
    if share is not None and share < MIN_POWER_SHARE:
        return f"the load reached only {share:.0%} of the power limit"
    return None


def _explained(evidence: LoadEvidence) -> str:
    """Name what explains a lower rate: a lower power limit, or a lower maximum clock."""
    own = evidence.record.before
    others = [peer.before for peer in evidence.peers if peer.before is not None]
    if own is None or not others:
        return ""
    for name, text in (
        ("power_limit_w", "its power limit is lower"),
        ("sm_clock_maximum_mhz", "its maximum clock is lower"),
    ):
        value = getattr(own, name)
        known = [figure for other in others if (figure := getattr(other, name)) is not None]
        if value is not None and known and value < statistics.median(known):
            return text
    return ""


@check(
    "load.temperature_spread",
    rule="degrees above the median, or above what that is at the GPU's own lower power: {limits}",
    source=basis.OWN,
    do=basis.HOT,
    unit="C above the median",
    warn=above(10),
)
def _load_temperature_spread(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """No GPU is much hotter than its peers, nor than its power explains.

    Reads the median temperature and power of the steady phase, and as that of the air the lowest
    temperature of its peers before the run.
    """
    name = "temperature_c"
    phases = _at_the_same_time(evidence)
    peers = peers_of(phase.median(name) for phase in phases)
    if peers is None:
        return not_applicable(f"fewer than {MIN_PEERS} GPUs to compare with")
    own = evidence.under_load(name)
    counters = [peer.before for peer in evidence.peers if peer.before is not None]
    before = [one.temperature_c for one in counters if one.temperature_c is not None]
    powers = peers_of(phase.median("power_w") for phase in phases)
    power = evidence.steady.median("power_w")
    if power is None or powers is None or not before or power >= powers.median:
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


@check("rate.peers", source=RATE_SOURCE, do=basis.SLOW, unit="of the median", limits=RATE_LIMITS)
def _rate_peers(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """The GPU is as fast as its peers.

    Reads the median rate of the steady phase.
    """
    peers = peers_of(map(_rate, _at_the_same_time(evidence)), MIN_DEVIATION)
    if peers is None:
        return not_applicable(f"fewer than {MIN_PEERS} GPUs of this model ran at the same time")
    own, unfit = _rate(evidence.steady), _unfit(evidence.record)
    if own is None or unfit is not None:
        return untested(unfit or NO_STEADY)
    return judge_rate(own, peers, limits, _explained(evidence))


def comparable_runs(evidence: LoadEvidence) -> list[Former]:
    """Select the earlier runs at the same power limit and with the same VBIOS."""
    before = evidence.record.before
    state = before and (before.power_limit_w, before.vbios)
    return [run for run in evidence.former if (run.power_limit_w, run.vbios) == state]


def _judge_copy(evidence: LoadEvidence, limits: Limits, usual: float, of: str) -> Judgement:
    """Judge the bandwidth of the memory against what is usual, in bytes a second."""
    if evidence.now.driver == "simulated":
        return not_applicable("a simulated GPU copies in the host's memory")
    own, limited = _copy_rate(evidence.record), _limited(evidence.record)
    if own is None or limited is not None:
        return untested(limited or "no bandwidth counts")
    measures = (format_measure("bytes_per_s", rate) for rate in (own, usual))
    text = f"; the median of {of} is ".join(measures)
    return by_limits(round(own / usual, 4), limits, text)


@check(
    "bandwidth.peers",
    source=f"Microsoft Autopilot: 0.8; the warning: {basis.OWN}, as links.peer",
    do=basis.SLOW_MEMORY,
    unit="of the median",
    fail=below(0.8),
    warn=below(0.95),
)
def _bandwidth_peers(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """The memory is as fast as that of the GPU's peers.

    Reads the median bandwidth of the phase that copies (elementwise).
    """
    peers = peers_of(map(_copy_rate, evidence.peers))
    if peers is None:
        return not_applicable(f"fewer than {MIN_PEERS} GPUs of this model have copied")
    return _judge_copy(evidence, limits, peers.median, f"{peers.count:,}")


@check(
    "bandwidth.history",
    source=basis.OWN,
    do=basis.SLOW_MEMORY,
    unit="of the median",
    warn=below(0.95),
)
def _bandwidth_history(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """The memory is as fast as it was.

    Reads the median bandwidth of the phase that copies (elementwise) against earlier runs.
    """
    rates = [run.copy for run in comparable_runs(evidence) if run.copy is not None]
    if len(rates) < MIN_RUNS:
        text = f"{len(rates)} earlier runs of this plan on this card, at this limit"
        return not_applicable(f"{text}; {MIN_RUNS} are needed")
    return _judge_copy(evidence, limits, statistics.median(rates) * 1e12, f"{len(rates)} runs")


@check(
    "rate.history",
    source=f"SuperBench: 5 %; the warning: {basis.OWN}",
    do=basis.compare("compare power, temperature and clocks with the earlier runs."),
    unit="of the median",
    fail=below(0.95),
    warn=below(0.97),
)
def _rate_history(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """The GPU is as fast as it was.

    Reads the median rate of the steady phase against earlier runs.
    """
    record, phase = evidence.record, steady_phase(evidence.record)
    warm = phase.median("temperature_c") if phase is not None else None
    rates = [
        run.rate
        for run in comparable_runs(evidence)
        if warm is None or run.temperature_c is None or abs(run.temperature_c - warm) <= SIMILAR_C
    ]
    if len(rates) < MIN_RUNS:
        text = f"{len(rates)} earlier runs of this plan on this card, at this limit and a like"
        return not_applicable(f"{text} temperature; {MIN_RUNS} are needed")
    own, unfit = _rate(phase), _unfit(record)
    if own is None or unfit is not None:
        return untested(unfit or NO_STEADY)
    median = statistics.median(rates)
    rate, usual = (format_measure("flops_per_s", one) for one in (own, median * 1e12))
    text = f"{rate}; the median of {len(rates)} runs is {usual}"
    return by_limits(round(own / 1e12 / median, 4), limits, text)


@check(
    "rate.reference", source=basis.DCGM_SHARE, do=basis.SLOW, unit="of the median", fail=below(0.75)
)
def _rate_reference(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """The GPU is as fast as others of its model.

    Reads the median rates against sentinel/burnin/checks/references.toml.
    """
    if not evidence.references:
        return not_applicable(f"there is no reference for {evidence.model}")
    unfit = _unfit(evidence.record)
    if unfit is not None:
        return untested(unfit)
    shares, texts = [], []
    for reference in evidence.references:
        unit = "flops" if reference.unit == "TFLOP/s" else "bytes"
        phases = [
            phase for phase in evidence.record.phases if phase.phase.workload == reference.workload
        ]
        rates = [rates for phase in phases if (rates := phase.rates(unit))]
        if rates:
            rate = statistics.median(rates[-1])
            shares.append(rate / 1e12 / reference.median)
            expected = f"{reference.median:g} {reference.unit} ({reference.source})"
            own = format_measure(f"{unit}_per_s", rate)
            texts.append(f"{reference.workload}: {own} of {expected}")
    if not shares:
        return untested("no rate counts")
    return by_limits(round(min(shares), 4), limits, "; ".join(texts))


# --- golden checksums ------------------------------------------------------------------------

_NONE = "no checksum was computed"


def _stored(evidence: LoadEvidence) -> dict[str, str]:
    gpus = (evidence.record, *evidence.peers)
    return stored_before(checksum for gpu in gpus for checksum in gpu.checksums)


@check(
    "golden.stored",
    source=basis.SAME_BITS,
    do=basis.isolate("the record may be of a faulty GPU; compare it with other hosts."),
    fail=above(0),
)
def _golden_stored(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """It computes the golden checksums that were stored before the run.

    Reads the checksums of the references, the file of the golden checksums.
    """
    own, stored = by_key(evidence.record.checksums), _stored(evidence)
    # A sample that was lost must not hide a finding.
    found = findings(evidence.record, FindingPlace.GOLDEN)
    if not own and found:
        return by_limits(len(found), limits, f"reported: {found[0]['detail']}")
    if not own:
        return untested(_NONE)
    compared = own.keys() & stored.keys()
    if not compared:
        return untested(f"none of {len(own)} checksums was on record before the run")
    wrong = [key for key in sorted(compared) if own[key] != {stored[key]}]
    text = f"{len(compared)} of {len(own)} checksums were on record before the run"
    if wrong:
        computed, known = ", ".join(sorted(own[wrong[0]])), stored[wrong[0]]
        text = f"{len(wrong)} of {len(compared)} differ; first: {wrong[0]}: {computed}, {known}"
        text += " is on record"
    return by_limits(len(wrong), limits, text)


@check(
    "golden.peers",
    source=f"{basis.SAME_BITS}; the majority is right",
    do=basis.isolate("remove what this GPU has recorded in the file of the golden checksums."),
    fail=above(0),
)
def _golden_peers(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """It computes the checksums of the node's other GPUs of its model.

    Reads the checksums of the references of all GPUs of the run.
    """
    own = by_key(evidence.record.checksums)
    if not own:
        return untested(_NONE)
    others = [gpu for gpu in evidence.peers if gpu.uuid != evidence.record.uuid]
    votes = count_votes([own, *(by_key(gpu.checksums) for gpu in others)])
    return judge_checksums(own, votes, _stored(evidence), limits)
