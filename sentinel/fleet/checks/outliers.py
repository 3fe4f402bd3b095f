"""What is wrong in a fleet, the worst first; what GPUs or nodes share is one entry. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sentinel.burnin.checks.check import CheckResult, Severity, Status
from sentinel.burnin.checks.measures import format_value
from sentinel.burnin.reports.verdict import Verdict
from sentinel.fleet.checks.verdict import MISSING, FleetGpu, FleetNode, FleetVerdict

#: The words that are listed, the worst first.
LISTED = (Verdict.FAIL.value, MISSING, Verdict.INCOMPLETE.value, Verdict.WARN.value)

#: The severities, the worst first.
_SEVERITIES = (
    Severity.ISOLATE,
    Severity.RESET,
    Severity.TRIAGE,
    Severity.UNKNOWN,
    Severity.CONFIG,
    Severity.MONITOR,
    Severity.NONE,
)

#: What stops no node is one entry for all nodes if more than so many have it, such as a warning
#: about a setting; what failed is named node by node.
MAX_ALIKE = 5
_JOINED = (Verdict.INCOMPLETE.value, Verdict.WARN.value)
_NUMBER = re.compile(r"[\d.,]*\d")


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """One entry: GPUs, or nodes themselves, with the same fault; or nodes missing alike."""

    #: One of LISTED.
    word: str
    nodes: tuple[FleetNode, ...]
    #: The GPUs that share the reasons; empty if it is about the nodes themselves.
    gpus: tuple[FleetGpu, ...] = ()
    #: In short: without limits and sources.
    reasons: tuple[str, ...]
    severity: Severity = Severity.UNKNOWN
    #: What to do; empty if no check says it.
    action: str = ""


def outliers(fleet: FleetVerdict) -> list[Outlier]:
    """List everything that is not PASS."""
    found = list(_missing(fleet.nodes))
    alike: dict[_Key, list[_Subject]] = {}
    for node in fleet.nodes:
        for subject in _subjects(node):
            alike.setdefault(_key(subject), []).append(subject)
    for key, subjects in alike.items():
        if key.word in _JOINED and len({one.node.name for one in subjects}) > MAX_ALIKE:
            found.append(_outlier(key.word, subjects))
            continue
        by_node: dict[str, list[_Subject]] = {}
        for one in subjects:
            by_node.setdefault(one.node.name, []).append(one)
        found += [_outlier(key.word, one) for one in by_node.values()]
    order = list(_SEVERITIES)

    def urgency(one: Outlier) -> tuple[int, int, str, bool]:
        name = one.nodes[0].name if one.word != MISSING else ""
        return LISTED.index(one.word), order.index(one.severity), name, bool(one.gpus)

    return sorted(found, key=urgency)


def _missing(nodes: Iterable[FleetNode]) -> Iterator[Outlier]:
    """Yield an entry for each reason of missing nodes, the most frequent first."""
    reasons: dict[str, list[FleetNode]] = {}
    for node in nodes:
        if node.missing:  # without numbers: those of jobs differ
            reasons.setdefault(_NUMBER.sub("#", node.missing), []).append(node)
    for _, found in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        reason = found[0].missing
        more = found[0].reasons[1:] if len(found) == 1 else ()
        if len(found) > 1 and (proved := sum(bool(node.findings) for node in found)):
            more = (f"{proved:,} of them had proved wrong results",)
        yield Outlier(word=MISSING, nodes=tuple(found), reasons=(reason, *more))


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """A GPU or a node itself with something wrong."""

    node: FleetNode
    gpu: FleetGpu | None
    bad: tuple[CheckResult, ...]
    #: What was not done.
    incomplete: tuple[str, ...]


class _Key(NamedTuple):
    """What subjects of one entry have in common."""

    word: str
    of_gpu: bool
    checks: tuple[tuple[str, Status], ...]
    #: Without numbers: seconds differ from GPU to GPU.
    incomplete: tuple[str, ...]


def _subjects(node: FleetNode) -> Iterator[_Subject]:
    """Yield the node, if something is wrong with it, and its GPUs that are not PASS."""
    nothing = () if node.gpus or node.missing else ("no GPU was tested",)
    if not node.missing and (node.bad or nothing):
        yield _Subject(node=node, gpu=None, bad=node.bad, incomplete=nothing)
    for gpu in node.gpus:
        if gpu.verdict.value in LISTED:
            yield _Subject(node=node, gpu=gpu, bad=gpu.bad, incomplete=gpu.gpu.incomplete)


def _key(subject: _Subject) -> _Key:
    """Find what a subject has in common with others."""
    if subject.gpu is not None:
        word = subject.gpu.verdict.value
    elif any(one.status is Status.FAIL for one in subject.bad):
        word = Verdict.FAIL.value
    else:
        word = Verdict.INCOMPLETE.value if subject.incomplete else Verdict.WARN.value
    return _Key(
        word=word,
        of_gpu=subject.gpu is not None,
        checks=tuple((one.id, one.status) for one in subject.bad),
        incomplete=tuple(_NUMBER.sub("#", text) for text in subject.incomplete),
    )


def _outlier(word: str, subjects: Sequence[_Subject]) -> Outlier:
    """Build the entry of subjects that are alike."""
    first = subjects[0]
    results = zip(*(subject.bad for subject in subjects), strict=True)
    nodes = {subject.node.name: subject.node for subject in subjects}
    return Outlier(
        word=word,
        nodes=tuple(nodes.values()),
        gpus=tuple(subject.gpu for subject in subjects if subject.gpu is not None),
        reasons=(*(_brief(result) for result in results), *first.incomplete),
        severity=_severity(first.bad),
        action=first.bad[0].action if first.bad else "",
    )


def _severity(results: Iterable[CheckResult]) -> Severity:
    """Find the worst severity of checks that failed or warned."""
    found = {result.severity for result in results}
    return next((one for one in _SEVERITIES if one in found), Severity.UNKNOWN)


def _brief(results: Sequence[CheckResult]) -> str:
    """Describe the results of one check on one or more GPUs: the evidence of the first."""
    first = results[0]
    if first.value is None:
        text = first.id
    else:
        values = sorted(
            {result.value for result in results if isinstance(result.value, int | float)}
        )
        unit = f" {first.unit}" if first.unit else ""
        if len(values) > 1:
            text = f"{first.id}: {format_value(values[0])} to {format_value(values[-1])}{unit}"
        else:
            text = f"{first.id}: {format_value(first.value, first.unit)}"
    return f"{text}: {first.evidence}" if first.evidence else text
