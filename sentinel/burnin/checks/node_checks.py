"""The checks of a node, and the health of its GPUs at one moment in every format. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from sentinel.burnin.checks import (
    counter_checks,
    expected_checks,
    host_checks,
    link_checks,
)
from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import (
    CheckResult,
    Judgement,
    Limits,
    Status,
    Thresholds,
    by_limits,
    not_applicable,
    untested,
    worst,
)
from sentinel.burnin.checks.evidence import (
    NOTHING,
    ExpectedEvidence,
    HostEvidence,
    MomentEvidence,
    NodeEvidence,
    ParticipationEvidence,
)
from sentinel.burnin.checks.expected_checks import EXPECTED, count_unchecked, unproved
from sentinel.burnin.checks.required_readings import why_unread
from sentinel.protocol.api_types import GpuProof
from sentinel.protocol.counters import Counters
from sentinel.protocol.gpu_names import device_of
from sentinel.units import format_count

TABLE = Table()


@TABLE.check("node.inventory")
def _node_inventory(evidence: NodeEvidence, limits: Limits) -> Judgement:
    """Count the GPUs on the PCI bus that NVML does not list."""
    if any(gpu.driver == "simulated" for gpu in evidence.gpus):
        return not_applicable("simulated GPUs are not on the bus")
    if evidence.pci_devices is None:
        return untested("the PCI bus could not be compared with NVML")
    unnamed = sum(gpu.pci_bus_id is None for gpu in evidence.gpus)
    missing = _unlisted(evidence.pci_devices, evidence.gpus)
    text = f"not listed by NVML: {', '.join(missing)}" if missing else ""
    return by_limits(max(0, len(missing) - unnamed), limits, text)


def _unlisted(devices: Iterable[str], gpus: Iterable[Counters]) -> list[str]:
    """Select the GPUs on the PCI bus that NVML does not list."""
    listed = {device_of(gpu.pci_bus_id) for gpu in gpus if gpu.pci_bus_id is not None}
    return [address for address in devices if device_of(address) not in listed]


#: Models with several GPUs on a board (NVIDIA's data sheets).
_SHARED_BOARD = re.compile(r"\b(K80|M10|M60|A16)\b")


@TABLE.check("node.serials")
def _node_serials(evidence: NodeEvidence, limits: Limits) -> Judgement:
    """Count the serial numbers that several GPUs have."""
    serials = [gpu.serial for gpu in evidence.gpus if not _SHARED_BOARD.search(gpu.name)]
    counts = Counter(filter(None, serials))
    if not counts:
        return not_applicable("no GPU has a serial number of its own")
    shared = sorted(serial for serial, count in counts.items() if count > 1)
    return by_limits(len(shared), limits, ", ".join(shared))


@TABLE.check("node.gpus")
def _node_gpus(evidence: ExpectedEvidence, _: Limits) -> Judgement:
    """Compare the number of GPUs with the expected one."""
    wanted = evidence.expectation.gpus
    if wanted is None:
        return not_applicable("the number of GPUs was not checked: no expectation says it")
    if evidence.driver_error is not None:
        return untested(evidence.driver_error)
    there = {gpu.uuid for gpu in evidence.listed if gpu.lost is None}
    difference = abs(wanted - len(there))
    if not difference and evidence.selected:
        return not_applicable("the number of GPUs was not judged: GPUs were selected")
    texts = [f"{len(there)} of {wanted} are there"]
    if len(there) < wanted:
        unlisted = _unlisted(evidence.pci_devices or (), evidence.listed)
        texts += [f"GPU {gpu.index} is lost: {gpu.lost}" for gpu in evidence.listed if gpu.lost]
        texts += [
            f"known from before: {evidence.known[uuid]}"
            for uuid in evidence.known
            if uuid not in there
        ]
        texts += [f"on the PCI bus, but not listed by NVML: {address}" for address in unlisted]
    status = Status.FAIL if difference else Status.PASS
    return Judgement(status=status, value=difference, evidence="; ".join(texts))


@TABLE.check("node.known")
def _node_known(evidence: ExpectedEvidence, limits: Limits) -> Judgement:
    """Count the GPUs of earlier runs that are gone."""
    if evidence.driver_error is not None:
        return untested(evidence.driver_error)
    there = {gpu.uuid for gpu in evidence.listed}
    gone = [text for uuid, text in evidence.known.items() if uuid not in there]
    if evidence.expectation.gpus is not None and len(there) >= evidence.expectation.gpus:
        limits = {}
    return by_limits(len(gone), limits, "; ".join(gone))


@TABLE.check("node.tested")
def _node_tested(evidence: ParticipationEvidence, limits: Limits) -> Judgement:
    """Count the GPUs of the node that took no part in the run."""
    if evidence.selected is None:
        return untested("it is not recorded whether GPUs were selected")
    if evidence.selected:
        return not_applicable("GPUs were selected")
    absent = [gpu for gpu in evidence.listed if gpu.uuid not in evidence.tested]
    text = "; ".join(
        f"GPU {gpu.index} has no verdict: {gpu.lost or 'it was not used'}" for gpu in absent
    )
    gone = sum(gpu.lost is not None and not gpu.unanswered for gpu in absent)
    lost = by_limits(gone, {"fail": limits["fail"]}, text)
    if lost.status is Status.FAIL:
        return lost
    return by_limits(len(absent), {"warn": limits["warn"]}, text)


# --- all GPUs of a node at one moment --------------------------------------------------------

#: All checks that need no burn-in.
MOMENT = Table(
    counter_checks.TABLE, link_checks.TABLE, TABLE, host_checks.TABLE, expected_checks.TABLE
)


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
        unjudged = {Status.NOT_TESTED, Status.NOT_APPLICABLE}
        return frozenset(result.id for result in self.checks if result.status not in unjudged)

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
    findings: Mapping[str, int] = MappingProxyType({}),
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
        findings: The number of wrong results and findings that a running daemon knows of, by UUID;
            empty without one.
        more: What the node must be, and the host around the GPUs.
    """
    everything = tuple(counters)
    expectations = (one.expectation for one in more if isinstance(one, ExpectedEvidence))
    expectation = next(expectations, NOTHING)
    reports = []
    for gpu in everything:
        found = findings.get(gpu.uuid or "")
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


# --- the formats of ``sentinel check`` -------------------------------------------------------

#: The exit codes of ``sentinel check``.
EXIT_CODES = {Status.PASS: 0, Status.WARN: 0, Status.FAIL: 1, Status.NOT_TESTED: 3}
TOOL_FAILED = 2

#: The exit codes and words of Nagios' plugins.
_NAGIOS = {
    Status.PASS: (0, "OK"),
    Status.WARN: (1, "WARNING"),
    Status.FAIL: (2, "CRITICAL"),
    Status.NOT_TESTED: (3, "UNKNOWN"),
}
NAGIOS_UNKNOWN = 3

#: The exit codes of node-problem-detector's custom plugins, and the most characters it takes.
_NPD = {Status.PASS: 0, Status.WARN: 0, Status.FAIL: 1, Status.NOT_TESTED: 2}
NPD_UNKNOWN = 2
NPD_CHARACTERS = 80

#: The checks whose values are performance data, by their labels.
_PERFDATA = {
    "temperature.gpu": "temperature_left",
    "ecc.uncorrected": "ecc_uncorrected",
    "memory.retired_pages": "retired_pages",
}


def exit_code(report: NodeReport, *, strict: bool = False) -> int:
    """Choose the exit code of ``sentinel check``; a strict one fails for a warning, too."""
    if report.failure is not None:
        return TOOL_FAILED
    return EXIT_CODES[Status.FAIL if strict and report.status is Status.WARN else report.status]


def nagios(report: NodeReport) -> tuple[int, str]:
    """Build the exit code and the line of a Nagios plugin, with performance data."""
    if report.failure is not None:
        return NAGIOS_UNKNOWN, nagios_unknown(report.failure)
    code, word = _NAGIOS[report.status]
    counts = Counter(gpu.status for gpu in report.gpus)
    text = _first_words(report, 5)
    data = [
        f"gpus={len(report.gpus)}",
        f"fail={counts[Status.FAIL]};;0",
        f"warn={counts[Status.WARN]};0",
        f"not_tested={counts[Status.NOT_TESTED]}",
        *_figures(report),
    ]
    return code, f"GPU {word} - {_line(text)} | {' '.join(data)}"


def nagios_unknown(why: str) -> str:
    """Build the line of a Nagios plugin that could not check anything."""
    return f"GPU UNKNOWN - {_line(why)}"


def npd(report: NodeReport, *, strict: bool = False) -> tuple[int, str]:
    """Build the exit code and the line of a custom plugin of node-problem-detector."""
    if report.failure is not None:
        return NPD_UNKNOWN, npd_line(report.failure)
    text = _first_words(report, 1)
    bad = strict and report.status is Status.WARN
    return _NPD[Status.FAIL if bad else report.status], npd_line(text)


def npd_line(text: str) -> str:
    """Cut a text to the one line that a plugin may print."""
    line = _line(text)
    return line if len(line) <= NPD_CHARACTERS else f"{line[: NPD_CHARACTERS - 3]}..."


def _line(text: str) -> str:
    """Join a text into one line without the character that separates performance data."""
    return " ".join(text.replace("|", "/").split())


def _first_words(report: NodeReport, most: int) -> str:
    """Name what made the status of the node, and the limits by which no GPU is proved correct."""
    texts = [report.thresholds.why_unproved, _results_in_words(report, most)]
    return "; ".join(filter(None, texts if report.status is Status.NOT_TESTED else texts[::-1]))


def _results_in_words(report: NodeReport, most: int) -> str:
    """Name the results that made the status of the node; count the GPUs if it passed."""
    match report.status:
        case Status.PASS:
            simulated = any(gpu.counters.driver == "simulated" for gpu in report.gpus)
            noun = "simulated GPU" if simulated else "GPU"
            notes = filter(None, [count_unchecked(report.node)])
            return "; ".join([f"{format_count(len(report.gpus), noun)} tested", *notes])
        case Status.NOT_TESTED:
            untested = [gpu for gpu in report.gpus if gpu.status is Status.NOT_TESTED]
            found = [
                f"GPU {gpu.counters.index}: {gpu.why_unread or gpu.checks[0].evidence}"
                for gpu in untested
            ]
            found += unproved(report.node)
        case status:
            found = [
                f"{place}: {result.id} = {result.value}{_words(result)}"
                for place, result in results_of(report)
                if result.status is status
            ]
    more = f", and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more or ("" if report.gpus else "no GPU was tested")


def _words(result: CheckResult) -> str:
    """Explain a word, such as the call that hung on a lost GPU, and what was expected."""
    explained = isinstance(result.value, str) or result.id in EXPECTED
    return f" ({result.evidence})" if explained and result.evidence else ""


def results_of(report: NodeReport) -> Iterator[tuple[str, CheckResult]]:
    """Yield every result with its place."""
    for result in report.node:
        yield "node", result
    for gpu in report.gpus:
        for result in gpu.checks:
            yield f"GPU {gpu.counters.index}", result


def _figures(report: NodeReport) -> Iterator[str]:
    for gpu in report.gpus:
        for result in gpu.checks:
            if result.id in _PERFDATA and isinstance(result.value, int | float):
                yield f"gpu{gpu.counters.index}_{_PERFDATA[result.id]}={result.value:g}"


def as_object(report: NodeReport) -> dict[str, Any]:
    """Build the object for JSON."""
    return {
        "verdict": report.status.value if report.failure is None else None,
        "notes": [*filter(None, [count_unchecked(report.node)])],
        "driver_error": report.driver_error,
        "thresholds_overridden": report.thresholds.overridden(),
        "correctness_overridden": dict(report.thresholds.excused),
        "node": [asdict(result) for result in report.node],
        "gpus": [
            {
                "uuid": gpu.counters.uuid or None,
                "index": gpu.counters.index,
                "name": gpu.counters.name,
                "serial": gpu.counters.serial,
                "pci_bus_id": gpu.counters.pci_bus_id,
                "driver": gpu.counters.driver,
                "vbios": gpu.counters.vbios,
                "verdict": gpu.status.value,
                "unread": gpu.why_unread,
                "checks": [asdict(result) for result in gpu.checks],
                "counters": gpu.counters,
            }
            for gpu in report.gpus
        ],
    }


# --- faults that a GPU has shown -------------------------------------------------------------

#: Verdicts as a status has them: sentinel.burnin.verdict is slow to import, and a health
#: check of a node must end within a second.
FAILED: Final = "FAIL"
PASSED: Final = frozenset({"PASS", "WARN"})


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
