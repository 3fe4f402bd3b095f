"""Run the checks of one moment on all GPUs of a node, and combine their results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from sentinel.burnin.checks.check import CheckResult, Evidence, NodeEvidence, Status, worst
from sentinel.burnin.checks.counter_checks import DAEMON_CHECKS, MOMENT_CHECKS, NODE_CHECKS
from sentinel.burnin.checks.thresholds import Thresholds
from sentinel.protocol.counters import Counters


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
    gpus = tuple(
        GpuReport(
            counters=one,
            checks=tuple(
                check.run(
                    Evidence(before=one, node=everything, findings=findings.get(one.uuid or "")),
                    thresholds,
                )
                for check in (*MOMENT_CHECKS, *DAEMON_CHECKS)
            ),
        )
        for one in everything
        if selected is None or one.index in selected
    )
    evidence = NodeEvidence(gpus=everything, pci_devices=pci_devices)
    node = tuple(check.run(evidence, thresholds) for check in NODE_CHECKS if selected is None)
    return NodeReport(
        gpus=gpus, node=node, driver_error=driver_error, overridden=thresholds.overridden()
    )
