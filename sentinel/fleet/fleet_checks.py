"""The checks of a fleet: GPUs grouped by equal hardware, and what stands out among them. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import (
    Judgement,
    Limits,
    Status,
    by_limits,
    not_applicable,
    untested,
)
from sentinel.burnin.checks.golden_checks import by_key, judge_checksums
from sentinel.burnin.checks.peers import (
    MIN_DEVIATION,
    MIN_PEERS,
    Peers,
    judge_rate,
    judge_temperature,
    peers_of,
)
from sentinel.config.expectation import show
from sentinel.fleet.node_result import HEAT, POWER, RATE, GpuResult, NodeFile, NodeResult

#: The median rate of the GPUs of a node, as a figure of its group.
NODE_RATE = "node_flops_per_s"

#: NVML's counters have 64 bits.
_MOST = 2**64

#: All checks of a fleet.
CHECKS = Table()

_FEW = f"fewer than {MIN_PEERS} GPUs of equal hardware to compare with"
_FEW_NODES = f"fewer than {MIN_PEERS} nodes of equal hardware to compare with"

#: What is compared between nodes with the same model, by the fields of an expectation.
_SETTINGS: Mapping[str, str] = {
    "driver": "driver",
    "power_limit_w": "power limit in W",
    "vbios": "VBIOS",
    "ecc": "ECC",
    "persistence": "persistence mode",
}
#: Whether an expectation of a node names a field of a model.
IsExpected = Callable[[NodeResult, str, str], bool]

#: Counts on one GPU; None if the count is not known.
Counted = Callable[[GpuResult], int | None]


# --- groups of equal hardware ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Hardware:
    """What GPUs must have in common to be compared."""

    model: str
    driver: str
    #: The enforced limit in whole watts, or None if it is unknown.
    power_limit_w: int | None
    #: The hash of the plan: another load gives another rate.
    plan_hash: str

    def __str__(self) -> str:
        limit = "" if self.power_limit_w is None else f", {self.power_limit_w} W"
        return f"{self.model}, driver {self.driver}{limit}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One GPU with its node."""

    node: str
    gpu: GpuResult


def _growth(name: str) -> Counted:
    def count(gpu: GpuResult) -> int | None:
        before, after = (
            getattr(counters, name, None) for counters in (gpu.counters.before, gpu.counters.after)
        )
        if before is None or after is None or not 0 <= before <= _MOST or not 0 <= after <= _MOST:
            return None
        # A counter that was reset in the run has counted at least what it shows now.
        return int(after - before if after >= before else after)

    return count


def _lifetime(gpu: GpuResult) -> int | None:
    count = gpu.newest.ecc_corrected_lifetime_total
    return count if count is not None and 0 <= count <= _MOST else None


#: The counters that are compared, by their name: the growth in the run, or the state after it.
COUNTED: Mapping[str, Counted] = {
    "ecc_corrected": _growth("ecc_corrected_total"),
    "ecc_corrected_lifetime": _lifetime,
    "pcie_replays": _growth("pcie_replays_total"),
}


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """GPUs of equal hardware, and what is usual among them; None without enough of them."""

    #: Counted from 1, the largest first.
    number: int
    hardware: Hardware
    members: Sequence[Member]

    @cached_property
    def nodes(self) -> dict[str, list[GpuResult]]:
        """The GPUs of each node, by its name."""
        found: dict[str, list[GpuResult]] = {}
        for member in self.members:
            found.setdefault(member.node, []).append(member.gpu)
        return found

    @cached_property
    def usual(self) -> dict[str, Peers | None]:
        """What is usual of the GPUs' figures and of the median rates of nodes, by their names."""
        gpus = [member.gpu for member in self.members]
        rates = (node_rate(gpus) for gpus in self.nodes.values())
        return {
            RATE: peers_of((gpu.steady(RATE) for gpu in gpus), MIN_DEVIATION),
            NODE_RATE: peers_of(rates, MIN_DEVIATION),
            HEAT: peers_of(gpu.steady(HEAT) for gpu in gpus),
            POWER: peers_of(gpu.steady(POWER) for gpu in gpus),
        }

    @cached_property
    def counters(self) -> dict[str, Peers]:
        """What is usual of the counters, by the names of COUNTED."""
        gpus = [member.gpu for member in self.members]
        found = {name: peers_of(map(count, gpus)) for name, count in COUNTED.items()}
        return {name: peers for name, peers in found.items() if peers is not None}

    @cached_property
    def usual_gpus(self) -> int | None:
        """How many GPUs more than half of the nodes have."""
        found = [len(gpus) for gpus in self.nodes.values()]
        number, nodes = Counter(found).most_common(1)[0]
        return number if len(found) >= MIN_PEERS and nodes * 2 > len(found) else None


def hardware_of(gpu: GpuResult, result: NodeResult) -> Hardware:
    """Name the hardware of a GPU."""
    limit = gpu.before.power_limit_w
    return Hardware(
        model=str(gpu.model),
        driver=result.node.driver or "unknown",
        power_limit_w=None if limit is None else round(limit),
        plan_hash=result.run.plan.hash,
    )


def groups_of(nodes: Iterable[NodeFile]) -> tuple[NodeGroup, ...]:
    """Group all GPUs, the largest group first."""
    found: dict[Hardware, list[Member]] = {}
    for node in nodes:
        if node.result is not None:
            for gpu in node.result.gpus:
                member = Member(node=node.name, gpu=gpu)
                found.setdefault(hardware_of(gpu, node.result), []).append(member)
    order = sorted(found.items(), key=lambda item: (-len(item[1]), str(item[0]), item[0].plan_hash))
    return tuple(
        NodeGroup(number=number, hardware=hardware, members=members)
        for number, (hardware, members) in enumerate(order, start=1)
    )


def node_rate(gpus: Iterable[GpuResult]) -> float | None:
    """Compute the median rate of the GPUs of a node."""
    rates = [gpu.steady(RATE) for gpu in gpus]
    known = [rate for rate in rates if rate is not None]
    return statistics.median(known) if known else None


# --- checks ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FleetGpuEvidence:
    """What the checks of one GPU may use."""

    gpu: GpuResult
    group: NodeGroup
    #: By the key of a golden checksum: how many GPUs of the fleet computed each.
    votes: Mapping[str, Counter[str]]
    #: The records of the GPU's node from before its run, by key.
    stored: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class FleetNodeEvidence:
    """What the checks of one node may use."""

    gpus: tuple[GpuResult, ...]
    #: Of its GPUs, or of most of them.
    group: NodeGroup
    #: In what it differs from the other nodes, as :func:`unlike_others` says it.
    unlike: Sequence[str] = ()


def unlike_others(nodes: Iterable[NodeFile], is_expected: IsExpected) -> dict[str, list[str]]:
    """Describe in what each node differs from most of the others, by its name."""
    found: dict[str, list[str]] = {}
    values: dict[str, dict[str, str]] = {}
    for node in nodes:
        if node.result is not None and node.result.gpus:
            for subject, value in _settings_of(node.result, is_expected):
                values.setdefault(subject, {})[node.name] = value
    for subject, by_node in values.items():
        (usual, most), *others = Counter(by_node.values()).most_common()
        is_tie = any(count == most for _, count in others)
        for name, value in by_node.items():
            if others and (is_tie or value != usual):
                rest = f"{most} of {len(by_node)} nodes have {usual}"
                found.setdefault(name, []).append(f"{subject}: {value}; {rest}")
    return found


def _settings_of(result: NodeResult, is_expected: IsExpected) -> Iterator[tuple[str, str]]:
    """Yield what is compared of a node: each subject, and its value."""
    by_model: dict[str, list[GpuResult]] = {}
    for gpu in result.gpus:
        by_model.setdefault(str(gpu.model), []).append(gpu)
    yield "model", " and ".join(sorted(by_model))
    for model, gpus in by_model.items():
        for name, word in _SETTINGS.items():
            read = {getattr(gpu.before, name, result.node.driver) for gpu in gpus}
            known = sorted({show(value) for value in read if value is not None})
            if known and not is_expected(result, model, name):
                yield f"{word} of {model}", " and ".join(known)


# --- GPUs ------------------------------------------------------------------------------------


@CHECKS.check("fleet.golden")
def _fleet_golden(evidence: FleetGpuEvidence, limits: Limits) -> Judgement:
    """Compare the golden checksums with those of the fleet."""
    own = by_key(evidence.gpu.golden_checksums)
    if not own:
        return untested("no checksum was computed, or the report is older than version 1.2")
    return judge_checksums(own, evidence.votes, evidence.stored, limits)


@CHECKS.check("fleet.rate")
def _fleet_rate(evidence: FleetGpuEvidence, limits: Limits) -> Judgement:
    """Compare the rate with that of equal GPUs."""
    peers, own = evidence.group.usual[RATE], evidence.gpu.steady(RATE)
    if peers is None:
        return not_applicable(_FEW)
    if own is None:
        return untested("no stretch of a steady phase counts")
    return judge_rate(own, peers, limits)


@CHECKS.check("fleet.temperature")
def _fleet_temperature(evidence: FleetGpuEvidence, limits: Limits) -> Judgement:
    """Compare the temperature with that of equal GPUs."""
    peers, own = evidence.group.usual[HEAT], evidence.gpu.steady(HEAT)
    if peers is None:
        return not_applicable(_FEW)
    if own is None:
        return untested("no temperature of a steady phase counts")
    return judge_temperature(own, peers, limits)


@CHECKS.rule("counted")
def _count(evidence: FleetGpuEvidence, limits: Limits, name: str) -> Judgement:
    """Judge a counter that most GPUs have near zero, where a ratio has no meaning."""
    peers, own = evidence.group.counters.get(name), COUNTED[name](evidence.gpu)
    if peers is None:
        return not_applicable(_FEW)
    if own is None:
        return untested("the counter could not be read before and after")
    deviation = max(peers.deviation, peers.median**0.5, 1.0)
    text = f"{own:,} counted; the median of {peers.count:,} GPUs is {peers.median:g}"
    return by_limits(round((own - peers.median) / deviation, 1), limits, text)


# --- nodes -----------------------------------------------------------------------------------


@CHECKS.check("fleet.node_rate")
def _fleet_node_rate(evidence: FleetNodeEvidence, limits: Limits) -> Judgement:
    """Compare the median rate of the node's GPUs with equal nodes."""
    peers, own = evidence.group.usual[NODE_RATE], node_rate(evidence.gpus)
    if peers is None:
        return not_applicable(_FEW_NODES)
    if own is None:
        return untested("no rate of its GPUs counts")
    return judge_rate(own, peers, limits)


@CHECKS.check("fleet.gpus")
def _fleet_gpus(evidence: FleetNodeEvidence, limits: Limits) -> Judgement:
    """Compare the number of GPUs with that of equal nodes."""
    usual, own = evidence.group.usual_gpus, len(evidence.gpus)
    if usual is None:
        return not_applicable("the nodes of this hardware differ, or are too few")
    return by_limits(max(0, usual - own), limits, f"{own} GPUs; most of such nodes have {usual}")


@CHECKS.check("fleet.settings")
def _fleet_settings(evidence: FleetNodeEvidence, _: Limits) -> Judgement:
    """Count the settings in which the node differs from most others."""
    status = Status.WARN if evidence.unlike else Status.PASS
    return Judgement(status=status, value=len(evidence.unlike), evidence="; ".join(evidence.unlike))
