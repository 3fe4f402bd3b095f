"""The health of a node's GPUs at one moment: their results, and what these say together. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from sentinel.burnin.checks import (
    counter_checks,
    expected_checks,
    host_checks,
    link_checks,
    node_checks,
)
from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import CheckResult, Status, Thresholds, judged_checks, worst
from sentinel.burnin.checks.evidence import (
    NOTHING,
    ExpectedEvidence,
    Findings,
    HostEvidence,
    MomentEvidence,
    NodeEvidence,
)
from sentinel.burnin.checks.expected_checks import unproved
from sentinel.burnin.checks.required_readings import why_unread
from sentinel.protocol.api_types import GpuProof
from sentinel.protocol.counters import Counters

#: All checks that need no burn-in.
MOMENT = Table(
    counter_checks.TABLE,
    link_checks.TABLE,
    node_checks.TABLE,
    host_checks.TABLE,
    expected_checks.TABLE,
)
#: Verdicts as a status has them: sentinel.burnin.verdict is slow to import, and a health
#: check of a node must end within a second.
FAILED: Final = "FAIL"
PASSED: Final = frozenset({"PASS", "WARN"})


@dataclass(frozen=True, kw_only=True)
class GpuReport:
    """The results of one GPU."""

    counters: Counters
    checks: tuple[CheckResult, ...]
    #: The checks that have judged another GPU of its model.
    twins: frozenset[str] = frozenset()

    @property
    def judged(self) -> frozenset[str]:
        """The checks that have judged it."""
        return judged_checks(self.checks)

    @property
    def why_unread(self) -> str | None:
        """What could not be read and is required, or None."""
        return why_unread(self.counters, self.checks, self.twins)

    @property
    def status(self) -> Status:
        """The status of all checks together: not tested without what is required, or a fault."""
        found = worst(self.checks)
        unread = found is not Status.FAIL and self.why_unread is not None
        return Status.NOT_TESTED if unread else found


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """The results of a node."""

    gpus: tuple[GpuReport, ...]
    #: The checks of the node as a whole.
    node: tuple[CheckResult, ...] = ()
    #: Why the driver is unusable, or None.
    driver_error: str | None = None
    #: By which it was judged.
    thresholds: Thresholds = field(default_factory=Thresholds)

    @property
    def status(self) -> Status:
        """The status of the node: not tested if a GPU was not tested, or none is there."""
        found = {gpu.status for gpu in self.gpus} or {Status.NOT_TESTED}
        found |= {worst(self.node)} - {Status.NOT_TESTED}
        found |= {Status.NOT_TESTED} if unproved(self.node) else set()
        found |= {Status.NOT_TESTED} if self.thresholds.why_unproved else set()
        order = (Status.FAIL, Status.NOT_TESTED, Status.WARN, Status.PASS)
        return next((status for status in order if status in found), Status.NOT_TESTED)

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
    findings: Mapping[str, Findings] = MappingProxyType({}),
    more: Sequence[ExpectedEvidence | HostEvidence] = (),
) -> NodeReport:
    """Judge the GPUs of a node.

    Args:
        counters: All GPUs.
        thresholds: The limits that differ from the defaults.
        pci_devices: The GPUs on the PCI bus that NVML should list, or None if unknown.
        selected: The indices of the GPUs to judge, or None for all; a node with a selection is not
            judged itself.
        driver_error: Why the driver is unusable, or None.
        findings: What daemons know against GPUs, by UUID; of "", against any other.
        more: What the node must be, and the host around the GPUs.
    """
    everything = tuple(counters)
    expectations = (one.expectation for one in more if isinstance(one, ExpectedEvidence))
    expectation = next(expectations, NOTHING)
    reports = []
    for gpu in everything:
        found = findings.get(gpu.uuid or "", findings.get(""))
        evidence = MomentEvidence(
            counters=gpu, node=everything, findings=found, expectation=expectation
        )
        reports.append(GpuReport(counters=gpu, checks=tuple(MOMENT.run(evidence, thresholds))))
    gpus = [
        replace(report, twins=frozenset().union(*(twin.judged for twin in _twins(report, reports))))
        for report in reports
        if selected is None or report.counters.index in selected
    ]
    node: list[CheckResult] = []
    if selected is None:
        node += MOMENT.run(NodeEvidence(gpus=everything, pci_devices=pci_devices), thresholds)
    node += [result for evidence in more for result in MOMENT.run(evidence, thresholds)]
    return NodeReport(
        gpus=tuple(gpus),
        node=tuple(node),
        driver_error=driver_error,
        thresholds=thresholds,
    )


def _twins(report: GpuReport, reports: Iterable[GpuReport]) -> Iterator[GpuReport]:
    name = report.counters.name
    return (one for one in reports if one is not report and one.counters.name == name)


def results_of(report: NodeReport) -> Iterator[tuple[str, CheckResult]]:
    """Yield every result with its place."""
    for result in report.node:
        yield "node", result
    for gpu in report.gpus:
        for result in gpu.checks:
            yield f"GPU {gpu.counters.index}", result


def proven_fault(verdict: str | None, plan: str | None, proof: GpuProof | None) -> str | None:
    """Describe the fault that a GPU has shown, or return None.

    A GPU of which nothing is known, or whose burn-in was not complete, has shown none.

    Args:
        verdict: The verdict of its last burn-in, or None without one.
        plan: The name of that burn-in's plan.
        proof: Its verified work, or None without any.
    """
    if verdict == FAILED:
        return f"failed burn-in {plan}" if plan else "failed burn-in"
    wrong = 0 if proof is None else proof.wrong
    return f"{wrong} wrong result{'s' * (wrong != 1)}" if wrong else None
