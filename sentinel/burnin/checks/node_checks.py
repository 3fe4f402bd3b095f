"""The checks of a node, and the health of all its GPUs at one moment. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from sentinel.burnin.checks import counter_checks, link_checks
from sentinel.burnin.checks.actions import OWN
from sentinel.burnin.checks.check import (
    Action,
    CheckResult,
    Judgement,
    Severity,
    Status,
    Table,
    by_limits,
    not_applicable,
    untested,
    worst,
)
from sentinel.burnin.checks.evidence import MomentEvidence, NodeEvidence, ParticipationEvidence
from sentinel.burnin.checks.thresholds import Limits, Thresholds, above
from sentinel.protocol.counters import Counters

TABLE = Table()
check = TABLE.check


@check(
    "node.inventory",
    source=OWN,
    do=Action(
        Severity.ISOLATE,
        "RESTART_BM: look for XIDs in `dmesg` and reboot. CONTACT_SUPPORT: keep the output of"
        " `nvidia-bug-report.sh` and contact the vendor.",
    ),
    unit="missing",
    fail=above(0),
)
def _node_inventory(evidence: NodeEvidence, limits: Limits) -> Judgement:
    """NVML lists every GPU on the PCI bus.

    Reads /sys/bus/pci/devices, nvmlDeviceGetCount.
    """
    if any(gpu.driver == "simulated" for gpu in evidence.gpus):
        return not_applicable("simulated GPUs are not on the bus")
    if evidence.pci_devices is None:
        return untested("the PCI bus could not be compared with NVML")
    listed = {gpu.pci_bus_id.upper() for gpu in evidence.gpus if gpu.pci_bus_id is not None}
    unnamed = sum(gpu.pci_bus_id is None for gpu in evidence.gpus)
    missing = [address for address in evidence.pci_devices if address.upper() not in listed]
    text = f"not listed by NVML: {', '.join(missing)}" if missing else ""
    return by_limits(max(0, len(missing) - unnamed), limits, text)


@check(
    "node.tested",
    rule="of GPUs that are not in the run, fail those that are lost, warn of others: {limits};"
    " not with --gpus or CUDA_VISIBLE_DEVICES",
    source=f"{OWN}: no verdict is no PASS",
    do=Action(
        Severity.ISOLATE,
        "RESTART_BM: look for XIDs in `dmesg` and reboot if a GPU is lost. Else name the GPUs to"
        " test by --gpus.",
    ),
    unit="GPUs",
    fail=above(0),
    warn=above(0),
)
def _node_tested(evidence: ParticipationEvidence, limits: Limits) -> Judgement:
    """Every GPU of the node took part in the run.

    Reads nvmlDeviceGetCount before the run, the events of the run.
    """
    if evidence.selected is None:
        return untested("it is not recorded whether GPUs were selected")
    if evidence.selected:
        return not_applicable("GPUs were selected")
    absent = [gpu for gpu in evidence.listed if gpu.uuid not in evidence.tested]
    text = "; ".join(
        f"GPU {gpu.index} has no verdict: {gpu.lost or 'it was not used'}" for gpu in absent
    )
    lost = by_limits(sum(gpu.lost is not None for gpu in absent), {"fail": limits["fail"]}, text)
    if lost.status is Status.FAIL:
        return lost
    return by_limits(len(absent), {"warn": limits["warn"]}, text)


# --- all GPUs of a node at one moment --------------------------------------------------------

#: All checks that need no burn-in.
MOMENT = Table(counter_checks.TABLE, link_checks.TABLE, TABLE)


@dataclass(frozen=True, kw_only=True)
class GpuReport:
    """The results of one GPU."""

    counters: Counters
    checks: tuple[CheckResult, ...]

    @property
    def status(self) -> Status:
        """The status of all checks together."""
        return worst(self.checks)


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """The results of a node."""

    gpus: tuple[GpuReport, ...]
    #: The checks of the node as a whole.
    node: tuple[CheckResult, ...] = ()
    #: Why the driver is unusable, or None.
    driver_error: str | None = None
    #: The limits that a file replaced.
    overridden: Mapping[str, str] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        """The status of the node: not tested if a GPU was not tested and none failed."""
        found = {gpu.status for gpu in self.gpus} | ({worst(self.node)} - {Status.NOT_TESTED})
        order = (Status.FAIL, Status.NOT_TESTED, Status.WARN, Status.PASS)
        return next((one for one in order if one in found), Status.NOT_TESTED)

    @property
    def failure(self) -> str | None:
        """Why there is no verdict, or None: a GPU that failed is one even if the driver is gone."""
        return None if self.status is Status.FAIL else self.driver_error


def judge_node(
    counters: Sequence[Counters],
    thresholds: Thresholds,
    *,
    pci_devices: tuple[str, ...] | None = None,
    selected: Collection[int] | None = None,
    driver_error: str | None = None,
    findings: Mapping[str, int] = MappingProxyType({}),
) -> NodeReport:
    """Judge the GPUs of a node.

    Args:
        counters: All GPUs.
        thresholds: The limits that differ from the defaults.
        pci_devices: The GPUs on the PCI bus that NVML should list, or None if unknown.
        selected: The indices of the GPUs to judge, or None for all; a node with a selection is not
            judged itself.
        driver_error: Why the driver is unusable, or None.
        findings: The number of wrong results and findings that a running daemon knows of, by UUID;
            empty without one.
    """
    everything = tuple(counters)
    gpus = []
    for one in everything:
        if selected is None or one.index in selected:
            found = findings.get(one.uuid or "")
            evidence = MomentEvidence(counters=one, node=everything, findings=found)
            gpus.append(GpuReport(counters=one, checks=tuple(MOMENT.run(evidence, thresholds))))
    node = NodeEvidence(gpus=everything, pci_devices=pci_devices)
    return NodeReport(
        gpus=tuple(gpus),
        node=tuple(MOMENT.run(node, thresholds)) if selected is None else (),
        driver_error=driver_error,
        overridden=thresholds.overridden(),
    )
