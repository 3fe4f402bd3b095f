"""Group the GPUs of a fleet by equal hardware, with what is usual in each group. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sentinel.burnin.checks.load_checks import MIN_POWER_SHARE
from sentinel.burnin.checks.peer_checks import MIN_DEVIATION, MIN_PEERS, Peers, peers_of
from sentinel.fleet.records.node_result import GpuResult, NodeFile, NodeResult


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


#: The counters that are compared, by their name: the growth in the run, or the state after it.
Counted = Callable[[GpuResult], int | None]


#: NVML's counters have 64 bits.
_MOST = 2**64


def _growth(name: str) -> Counted:
    def count(gpu: GpuResult) -> int | None:
        before, after = (getattr(one, name, None) for one in (gpu.before, gpu.after))
        if before is None or after is None or not 0 <= before <= _MOST or not 0 <= after <= _MOST:
            return None
        # A counter that was reset in the run has counted at least what it shows now.
        return int(after - before if after >= before else after)

    return count


def _lifetime(gpu: GpuResult) -> int | None:
    newest = gpu.after or gpu.before
    count = None if newest is None else newest.ecc_corrected_lifetime_total
    return count if count is not None and 0 <= count <= _MOST else None


COUNTED: Mapping[str, Counted] = {
    "ecc_corrected": _growth("ecc_corrected_total"),
    "ecc_corrected_lifetime": _lifetime,
    "pcie_replays": _growth("pcie_replays_total"),
}


@dataclass(frozen=True, kw_only=True)
class Group:
    """GPUs of equal hardware, and what is usual among them; None without enough of them."""

    #: Counted from 1, the largest first.
    number: int
    hardware: Hardware
    members: Sequence[Member]
    rate: Peers | None = None
    temperature: Peers | None = None
    power: Peers | None = None
    clock_maximum: float | None = None
    #: Of the median rate of each node.
    node_rate: Peers | None = None
    #: By the names of COUNTED.
    counters: Mapping[str, Peers] = field(default_factory=dict)
    #: How many GPUs most of the nodes have; None if there is no such number.
    usual_gpus: int | None = None

    def by_node(self) -> dict[str, list[GpuResult]]:
        """Collect the GPUs of each node."""
        found: dict[str, list[GpuResult]] = {}
        for member in self.members:
            found.setdefault(member.node, []).append(member.gpu)
        return found


def hardware_of(gpu: GpuResult, node: NodeResult) -> Hardware:
    """Name the hardware of a GPU."""
    limit = gpu.before.power_limit_w if gpu.before is not None else None
    return Hardware(
        model=gpu.model,
        driver=node.driver or "unknown",
        power_limit_w=None if limit is None else round(limit),
        plan_hash=node.plan_hash,
    )


def groups_of(nodes: Iterable[NodeFile]) -> tuple[Group, ...]:
    """Group all GPUs, the largest group first."""
    members: dict[Hardware, list[Member]] = {}
    for node in nodes:
        if node.result is not None:
            for gpu in node.result.gpus:
                member = Member(node=node.node, gpu=gpu)
                members.setdefault(hardware_of(gpu, node.result), []).append(member)
    order = sorted(
        members.items(), key=lambda item: (-len(item[1]), str(item[0]), item[0].plan_hash)
    )
    return tuple(_group(number, *item) for number, item in enumerate(order, start=1))


def not_representative(gpu: GpuResult) -> str:
    """Explain why the rate of a GPU must not be judged; empty if it may be."""
    limit = gpu.before.power_limit_w if gpu.before is not None else None
    if gpu.steady.rate is None:
        return "no stretch of a steady phase counts"
    if limit and gpu.steady.power_w is not None and gpu.steady.power_w / limit < MIN_POWER_SHARE:
        return f"the load reached less than {MIN_POWER_SHARE:.0%} of the power limit"
    return ""


def node_rate(gpus: Iterable[GpuResult]) -> float | None:
    """Compute the median rate of the GPUs of a node that may be judged."""
    rates = [gpu.steady.rate for gpu in gpus if not not_representative(gpu)]
    known = [rate for rate in rates if rate is not None]
    return statistics.median(known) if known else None


def _group(number: int, hardware: Hardware, members: Sequence[Member]) -> Group:
    """Compute what is usual in a group."""
    gpus = [member.gpu for member in members]
    plain = Group(number=number, hardware=hardware, members=members)
    clocks = [gpu.before.sm_clock_maximum_mhz for gpu in gpus if gpu.before is not None]
    known_clocks = [clock for clock in clocks if clock is not None]
    nodes = plain.by_node()
    counted = {name: peers_of(map(count, gpus)) for name, count in COUNTED.items()}
    return Group(
        number=number,
        hardware=hardware,
        members=members,
        rate=peers_of((gpu.steady.rate for gpu in gpus), MIN_DEVIATION),
        temperature=peers_of(gpu.steady.temperature_c for gpu in gpus),
        power=peers_of(gpu.steady.power_w for gpu in gpus),
        clock_maximum=statistics.median(known_clocks) if known_clocks else None,
        node_rate=peers_of((node_rate(node) for node in nodes.values()), MIN_DEVIATION),
        counters={name: peers for name, peers in counted.items() if peers is not None},
        usual_gpus=_usual(len(node) for node in nodes.values()),
    )


def _usual(counts: Iterable[int]) -> int | None:
    """Find the number of GPUs that more than half of the nodes have."""
    found = list(counts)
    number, nodes = Counter(found).most_common(1)[0]
    return number if len(found) >= MIN_PEERS and nodes * 2 > len(found) else None
