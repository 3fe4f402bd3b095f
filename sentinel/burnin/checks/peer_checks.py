"""The checks that compare a GPU with others, with references and with its own past. Pure.

A golden checksum is recorded by the first GPU that computes its key, which may be the faulty one.
So a record that was made in the run itself is no authority: there, the majority of the node's GPUs
is.
"""

from __future__ import annotations

import statistics

from sentinel.burnin.checks.actions import DCGM_SHARE, HOT, OWN, SAME_BITS, SLOW, compare, isolate
from sentinel.burnin.checks.check import Judgement, Table, by_limits, not_applicable, untested
from sentinel.burnin.checks.load_checks import (
    MIN_POWER_SHARE,
    NO_STEADY,
    LoadEvidence,
    findings,
    power_share,
    steady_phase,
)
from sentinel.burnin.checks.peers import (
    MIN_DEVIATION,
    MIN_PEERS,
    RATE_LIMITS,
    RATE_SOURCE,
    TEMPERATURE_LIMITS,
    by_key,
    count_votes,
    judge_checksums,
    judge_rate,
    judge_temperature,
    peers_of,
    stored_before,
)
from sentinel.burnin.checks.thresholds import Limits, above, below
from sentinel.burnin.records.record import GpuRecord, PhaseRecord
from sentinel.protocol.stressor import FindingPlace

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


def _unfit(record: GpuRecord) -> str | None:
    """Explain why the rate of a GPU must not be judged, or return None."""
    before = record.before
    if before is not None and before.power_limit_w and before.power_limit_default_w:
        limit = before.power_limit_w / before.power_limit_default_w
        if limit < SAME_LIMIT:
            return f"its power limit is {limit:.0%} of the default"
    share = power_share(record)
    if share is not None and share < MIN_POWER_SHARE:
        return f"the load reached only {share:.0%} of the power limit"
    return None


def _explained(evidence: LoadEvidence) -> str:
    """Name what explains a lower rate: a lower power limit, or a lower maximum clock."""
    own = evidence.record.before
    others = [one.before for one in evidence.peers if one.before is not None]
    if own is None or not others:
        return ""
    for name, text in (
        ("power_limit_w", "its power limit is lower"),
        ("sm_clock_maximum_mhz", "its maximum clock is lower"),
    ):
        value = getattr(own, name)
        known = [figure for one in others if (figure := getattr(one, name)) is not None]
        if value is not None and known and value < statistics.median(known):
            return text
    return ""


@check(
    "load.temperature_spread",
    source=OWN,
    do=HOT,
    unit="C above the median",
    limits=TEMPERATURE_LIMITS,
)
def _load_temperature_spread(evidence: LoadEvidence, limits: Limits) -> Judgement:
    """No GPU is much hotter than its peers.

    Reads the median temperature of the steady phase.
    """
    name = "temperature_c"
    peers = peers_of(phase.median(name) for phase in _at_the_same_time(evidence))
    if peers is None:
        return not_applicable(f"fewer than {MIN_PEERS} GPUs to compare with")
    return judge_temperature(evidence.under_load(name), peers, limits)


@check("rate.peers", source=RATE_SOURCE, do=SLOW, unit="of the median", limits=RATE_LIMITS)
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


@check(
    "rate.history",
    source=f"SuperBench: 5 %; the warning: {OWN}",
    do=compare("compare power, temperature and clocks with the earlier runs."),
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
    state = record.before and (record.before.power_limit_w, record.before.vbios)
    rates = [
        run.rate
        for run in evidence.former
        if (run.power_limit_w, run.vbios) == state
        and (
            warm is None or run.temperature_c is None or abs(run.temperature_c - warm) <= SIMILAR_C
        )
    ]
    if len(rates) < MIN_RUNS:
        text = f"{len(rates)} earlier runs of this plan on this card, at this limit and a like"
        return not_applicable(f"{text} temperature; {MIN_RUNS} are needed")
    own, unfit = _rate(phase), _unfit(record)
    if own is None or unfit is not None:
        return untested(unfit or NO_STEADY)
    median = statistics.median(rates)
    text = f"{own / 1e12:.1f} TFLOP/s; the median of {len(rates)} runs is {median:.1f}"
    return by_limits(round(own / 1e12 / median, 4), limits, text)


@check("rate.reference", source=DCGM_SHARE, do=SLOW, unit="of the median", fail=below(0.75))
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
    for one in evidence.references:
        unit = "flops" if one.unit == "TFLOP/s" else "bytes"
        phases = [phase for phase in evidence.record.phases if phase.phase.workload == one.workload]
        rates = [rates for phase in phases if (rates := phase.rates(unit))]
        if rates:
            rate = statistics.median(rates[-1]) / 1e12
            shares.append(rate / one.median)
            texts.append(f"{one.workload}: {rate:.1f} of {one.median:g} {one.unit} ({one.source})")
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
    source=SAME_BITS,
    do=isolate("the record may be of a faulty GPU; compare it with other hosts."),
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
    source=f"{SAME_BITS}; the majority is right",
    do=isolate("remove what this GPU has recorded in the file of the golden checksums."),
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
