"""The checks of a fleet: what stands out only in comparison with equal GPUs elsewhere. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.burnin.checks.check import (
    Check,
    Judgement,
    Severity,
    Status,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.counter_checks import OWN, known_limits
from sentinel.burnin.checks.load_checks import RETEST
from sentinel.burnin.checks.peers import (
    MIN_PEERS,
    RATE_LIMITS,
    RATE_SOURCE,
    TEMPERATURE_LIMITS,
    Vote,
    judge_rate,
    judge_temperature,
    vote_on,
)
from sentinel.burnin.checks.thresholds import Limits, above
from sentinel.fleet.checks.groups import COUNTED, Group, node_rate, not_representative
from sentinel.fleet.records.node_result import GpuResult

_FEW = f"fewer than {MIN_PEERS} GPUs of equal hardware to compare with"
_FEW_NODES = f"fewer than {MIN_PEERS} nodes of equal hardware to compare with"
_PEER_SOURCE = f"as rate.peers: {RATE_SOURCE}"
_COUNTER_SOURCE = f"{OWN}: five standard deviations; of counts, at least the root of the median"


@dataclass(frozen=True, kw_only=True)
class GpuEvidence:
    """What the checks of one GPU may use."""

    gpu: GpuResult
    group: Group
    #: By the key of a golden checksum: how many GPUs of the fleet computed each.
    votes: Mapping[str, Counter[str]]
    #: The records of the GPU's node from before its run, by key.
    stored: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class NodeEvidence:
    """What the checks of one node may use."""

    gpus: tuple[GpuResult, ...]
    #: Of its GPUs, or of most of them.
    group: Group


# --- rates -----------------------------------------------------------------------------------


def _gpu_rate(evidence: GpuEvidence, limits: Limits) -> Judgement:
    peers, own = evidence.group.rate, evidence.gpu.steady.rate
    unfit = not_representative(evidence.gpu)
    if peers is None:
        return not_applicable(_FEW)
    if unfit or own is None:
        return untested(unfit)
    return judge_rate(own, peers, limits, _explained(evidence.gpu, evidence.group))


def _explained(gpu: GpuResult, group: Group) -> str:
    """Name what explains a lower rate; the power limit is that of the group."""
    own = gpu.before.sm_clock_maximum_mhz if gpu.before is not None else None
    if own is not None and group.clock_maximum is not None and own < group.clock_maximum:
        return "its maximum clock is lower"
    return ""


def _node_rate(evidence: NodeEvidence, limits: Limits) -> Judgement:
    peers, own = evidence.group.node_rate, node_rate(evidence.gpus)
    if peers is None:
        return not_applicable(_FEW_NODES)
    if own is None:
        return untested("no rate of its GPUs counts")
    return judge_rate(own, peers, limits, "")


def _gpus(evidence: NodeEvidence, limits: Limits) -> Judgement:
    usual, own = evidence.group.usual_gpus, len(evidence.gpus)
    if usual is None:
        return not_applicable("the nodes of this hardware differ, or are too few")
    return by_limits(max(0, usual - own), limits, f"{own} GPUs; most of such nodes have {usual}")


# --- temperature and counters ----------------------------------------------------------------


def _temperature(evidence: GpuEvidence, limits: Limits) -> Judgement:
    peers, own = evidence.group.temperature, evidence.gpu.steady.temperature_c
    if peers is None:
        return not_applicable(_FEW)
    if own is None:
        return untested("no temperature of a steady phase counts")
    return judge_temperature(own, peers, limits)


def _counter(name: str) -> Check[GpuEvidence]:
    """Build the check of a counter that most GPUs have near zero, where a ratio has no meaning."""

    def judge(evidence: GpuEvidence, limits: Limits) -> Judgement:
        peers, own = evidence.group.counters.get(name), COUNTED[name](evidence.gpu)
        if peers is None:
            return not_applicable(_FEW)
        if own is None:
            return untested("the counter could not be read before and after")
        deviation = max(peers.deviation, peers.median**0.5, 1.0)
        text = f"{own:,} counted; the median of {peers.count:,} GPUs is {peers.median:g}"
        return by_limits(round((own - peers.median) / deviation, 1), limits, text)

    title, reads, action = _COUNTERS[name]
    return Check(
        id=f"fleet.{name}",
        limits={"warn": above(5)},
        title=title,
        reads=reads,
        unit="standard deviations",
        source=_COUNTER_SOURCE,
        severity=Severity.MONITOR,
        action=action,
        judge=judge,
    )


_WATCH = "IGNORE: watch whether they grow; a rate alone is no fault."
_COUNTERS = {
    "ecc_corrected": (
        "No more new correctable errors than on equal GPUs",
        "nvmlDeviceGetTotalEccErrors(CORRECTED, VOLATILE)",
        _WATCH,
    ),
    "ecc_corrected_lifetime": (
        "No more correctable errors in the card's life than on equal GPUs",
        "nvmlDeviceGetTotalEccErrors(CORRECTED, AGGREGATE)",
        _WATCH,
    ),
    "pcie_replays": (
        "No more retransmissions on PCIe than on equal GPUs",
        "nvmlDeviceGetPcieReplayCounter",
        "CHECK_MECHANICALS: reseat the card; check the slot, the riser and the cables.",
    ),
}


# --- golden checksums ------------------------------------------------------------------------


def _golden(evidence: GpuEvidence, limits: Limits) -> Judgement:
    own: dict[str, set[str]] = {}
    for checksum in evidence.gpu.checksums:
        own.setdefault(checksum.key, set()).add(checksum.checksum)
    if not own:
        return untested("no checksum was computed, or the report is older than version 1.2")
    compared = [key for key in own if evidence.votes[key].total() > len(own[key])]
    wrong = [
        why
        for key in sorted(own)
        if (why := _why_wrong(own[key], evidence.votes[key], evidence.stored.get(key)))
    ]
    if not compared and not wrong:
        return untested("no other GPU has computed the same")
    text = f"{len(compared)} checksums are compared with those of other GPUs"
    if wrong:
        text = f"{len(wrong)} of {len(own)}: {wrong[0]}"
    return by_limits(len(wrong), limits, text)


def _why_wrong(own: set[str], votes: Counter[str], stored: str | None) -> str:
    """Explain why the checksum of a key is wrong; empty if it is not."""
    if len(own) > 1:
        return f"the GPU contradicts itself: {', '.join(sorted(own))}"
    (value,) = own
    vote, rival = vote_on(value, votes, stored)
    text = f"{value}, as {votes[value] - 1:,} of {votes.total() - 1:,} other GPUs"
    match vote:
        case Vote.AGREES:
            return ""
        case Vote.OUTVOTED:
            return f"{text}; {votes[rival]:,} computed {rival}"
        case Vote.AGAINST_RECORD:
            return f"{text}; the node's record is {stored}"
        case Vote.TIED:
            return f"{text}; as many computed {rival}, and no majority says which is right"


# --- the tables ------------------------------------------------------------------------------

#: The checks of one GPU, in the order of the report.
GPU_CHECKS: tuple[Check[GpuEvidence], ...] = (
    Check(
        id="fleet.golden",
        limits={"fail": above(0)},
        title="It computes the golden checksums of the other GPUs of its model",
        reads="the checksums of the references of all GPUs of the fleet",
        unit="wrong",
        source="as golden.peers: the same inputs, kernels and model give the same bits; the"
        " majority is right",
        severity=Severity.ISOLATE,
        action=f"TRIAGE: remove what this GPU has recorded in its node's file. {RETEST}",
        judge=_golden,
    ),
    Check(
        id="fleet.rate",
        limits=RATE_LIMITS,
        title="The GPU is as fast as equal GPUs of the fleet",
        reads="the median rate of the steady phase",
        unit="of the median",
        source=_PEER_SOURCE,
        severity=Severity.TRIAGE,
        action=f"TRIAGE: compare power, temperature and clocks. {RETEST}",
        judge=_gpu_rate,
    ),
    Check(
        id="fleet.temperature",
        limits=TEMPERATURE_LIMITS,
        title="The GPU is not much hotter than equal GPUs of the fleet",
        reads="the median temperature of the steady phase",
        unit="C above the median",
        source="own, as load.temperature_spread",
        severity=Severity.TRIAGE,
        action="CHECK_MECHANICALS: compare its airflow and inlet temperature with the others.",
        judge=_temperature,
    ),
    *(_counter(name) for name in _COUNTERS),
)

#: The checks of one node.
NODE_CHECKS: tuple[Check[NodeEvidence], ...] = (
    Check(
        id="fleet.node_rate",
        limits=RATE_LIMITS,
        title="The node is as fast as nodes of equal hardware",
        reads="the median of its GPUs' median rates of the steady phase",
        unit="of the median",
        source=_PEER_SOURCE,
        severity=Severity.TRIAGE,
        action="TRIAGE: compare its power supply, its cooling and its settings with the others.",
        judge=_node_rate,
    ),
    Check(
        id="fleet.gpus",
        limits={"warn": above(0)},
        title="The node has as many GPUs as nodes of equal hardware",
        reads="the GPUs in the reports",
        unit="missing",
        source="own: a GPU that left the PCI bus is in no list of its node",
        severity=Severity.TRIAGE,
        action="CHECK_MECHANICALS: count the cards; look for XID 79 in the logs of the node.",
        judge=_gpus,
    ),
)

#: All checks of a fleet.
CHECKS: tuple[Check[Any], ...] = (*GPU_CHECKS, *NODE_CHECKS)
#: Their default limits, for a file of thresholds.
LIMITS = known_limits(CHECKS)
#: Their ids.
IDS = frozenset(check.id for check in CHECKS)
#: The statuses that are reasons of a verdict, the worst first.
BAD = (Status.FAIL, Status.WARN)
