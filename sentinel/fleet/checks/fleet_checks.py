"""The checks of a fleet: what stands out only in comparison with equal GPUs elsewhere. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sentinel.burnin.checks.actions import (
    HOT,
    OWN,
    REPLAYS,
    SAME_BITS,
    SLOW,
    WATCH,
    compare,
    isolate,
)
from sentinel.burnin.checks.check import (
    Action,
    Judgement,
    Severity,
    Table,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.peer_checks import (
    MIN_PEERS,
    RATE_LIMITS,
    RATE_SOURCE,
    TEMPERATURE_LIMITS,
    by_key,
    judge_checksums,
    judge_rate,
    judge_temperature,
)
from sentinel.burnin.checks.thresholds import Limits, above
from sentinel.fleet.checks.groups import COUNTED, Group, node_rate, not_representative
from sentinel.fleet.records.node_result import GpuResult

#: All checks of a fleet.
CHECKS = Table()
check = CHECKS.check

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


# --- GPUs ------------------------------------------------------------------------------------


@check(
    "fleet.golden",
    source=f"as golden.peers: {SAME_BITS}; the majority is right",
    do=isolate("remove what this GPU has recorded in its node's file."),
    unit="wrong",
    fail=above(0),
)
def _fleet_golden(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """It computes the golden checksums of the other GPUs of its model.

    Reads the checksums of the references of all GPUs of the fleet.
    """
    own = by_key(evidence.gpu.checksums)
    if not own:
        return untested("no checksum was computed, or the report is older than version 1.2")
    return judge_checksums(own, evidence.votes, evidence.stored, limits)


@check("fleet.rate", source=_PEER_SOURCE, do=SLOW, unit="of the median", limits=RATE_LIMITS)
def _fleet_rate(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """The GPU is as fast as equal GPUs of the fleet.

    Reads the median rate of the steady phase.
    """
    peers, own = evidence.group.rate, evidence.gpu.steady.rate
    unfit = not_representative(evidence.gpu)
    if peers is None:
        return not_applicable(_FEW)
    if unfit or own is None:
        return untested(unfit)
    # The power limit, which explains a lower rate, too, is that of the group.
    clock = evidence.gpu.before.sm_clock_maximum_mhz if evidence.gpu.before is not None else None
    usual = evidence.group.clock_maximum
    lower = clock is not None and usual is not None and clock < usual
    return judge_rate(own, peers, limits, "its maximum clock is lower" if lower else "")


@check(
    "fleet.temperature",
    source=f"{OWN}, as load.temperature_spread",
    do=HOT,
    unit="C above the median",
    limits=TEMPERATURE_LIMITS,
)
def _fleet_temperature(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """The GPU is not much hotter than equal GPUs of the fleet.

    Reads the median temperature of the steady phase.
    """
    peers, own = evidence.group.temperature, evidence.gpu.steady.temperature_c
    if peers is None:
        return not_applicable(_FEW)
    if own is None:
        return untested("no temperature of a steady phase counts")
    return judge_temperature(own, peers, limits)


def _count(evidence: GpuEvidence, limits: Limits, name: str) -> Judgement:
    """Judge a counter that most GPUs have near zero, where a ratio has no meaning."""
    peers, own = evidence.group.counters.get(name), COUNTED[name](evidence.gpu)
    if peers is None:
        return not_applicable(_FEW)
    if own is None:
        return untested("the counter could not be read before and after")
    deviation = max(peers.deviation, peers.median**0.5, 1.0)
    text = f"{own:,} counted; the median of {peers.count:,} GPUs is {peers.median:g}"
    return by_limits(round((own - peers.median) / deviation, 1), limits, text)


_DEVIATIONS = "standard deviations"


@check("fleet.ecc_corrected", source=_COUNTER_SOURCE, do=WATCH, unit=_DEVIATIONS, warn=above(5))
def _fleet_ecc_corrected(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """No more new correctable errors than on equal GPUs.

    Reads nvmlDeviceGetTotalEccErrors(CORRECTED, VOLATILE).
    """
    return _count(evidence, limits, "ecc_corrected")


@check(
    "fleet.ecc_corrected_lifetime",
    source=_COUNTER_SOURCE,
    do=WATCH,
    unit=_DEVIATIONS,
    warn=above(5),
)
def _fleet_ecc_corrected_lifetime(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """No more correctable errors in the card's life than on equal GPUs.

    Reads nvmlDeviceGetTotalEccErrors(CORRECTED, AGGREGATE).
    """
    return _count(evidence, limits, "ecc_corrected_lifetime")


@check("fleet.pcie_replays", source=_COUNTER_SOURCE, do=REPLAYS, unit=_DEVIATIONS, warn=above(5))
def _fleet_pcie_replays(evidence: GpuEvidence, limits: Limits) -> Judgement:
    """No more retransmissions on PCIe than on equal GPUs.

    Reads nvmlDeviceGetPcieReplayCounter.
    """
    return _count(evidence, limits, "pcie_replays")


# --- nodes -----------------------------------------------------------------------------------


@check(
    "fleet.node_rate",
    source=_PEER_SOURCE,
    do=compare("compare its power supply, its cooling and its settings with the others."),
    unit="of the median",
    limits=RATE_LIMITS,
)
def _fleet_node_rate(evidence: NodeEvidence, limits: Limits) -> Judgement:
    """The node is as fast as nodes of equal hardware.

    Reads the median of its GPUs' median rates of the steady phase.
    """
    peers, own = evidence.group.node_rate, node_rate(evidence.gpus)
    if peers is None:
        return not_applicable(_FEW_NODES)
    if own is None:
        return untested("no rate of its GPUs counts")
    return judge_rate(own, peers, limits, "")


@check(
    "fleet.gpus",
    source=f"{OWN}: a GPU that left the PCI bus is in no list of its node",
    do=Action(
        Severity.TRIAGE,
        "CHECK_MECHANICALS: count the cards; look for XID 79 in the logs of the node.",
    ),
    unit="missing",
    warn=above(0),
)
def _fleet_gpus(evidence: NodeEvidence, limits: Limits) -> Judgement:
    """The node has as many GPUs as nodes of equal hardware.

    Reads the GPUs in the reports.
    """
    usual, own = evidence.group.usual_gpus, len(evidence.gpus)
    if usual is None:
        return not_applicable("the nodes of this hardware differ, or are too few")
    return by_limits(max(0, usual - own), limits, f"{own} GPUs; most of such nodes have {usual}")
