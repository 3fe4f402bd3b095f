"""What is wrong in a fleet, the worst first; GPUs of a node that share it are one entry. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sentinel.burnin.check import CheckResult, Severity
from sentinel.burnin.measures import format_value
from sentinel.burnin.verdict import Verdict
from sentinel.fleet.verdict import MISSING, FleetGpu, FleetNode, FleetVerdict

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


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """One entry: GPUs of one node, a node itself, or nodes that are missing for one reason."""

    #: One of LISTED.
    word: str
    nodes: tuple[FleetNode, ...]
    #: The GPUs of the node that share the reasons; empty if it is about the node itself.
    gpus: tuple[FleetGpu, ...] = ()
    #: In short: without limits and sources.
    reasons: tuple[str, ...]
    severity: Severity = Severity.UNKNOWN
    #: What to do; empty if no check says it.
    action: str = ""


def outliers(fleet: FleetVerdict) -> list[Outlier]:
    """List everything that is not PASS."""
    found = list(_missing(fleet.nodes))
    for node in fleet.nodes:
        found += [*_node(node), *_gpus(node)]
    order = list(_SEVERITIES)
    return sorted(found, key=lambda one: (LISTED.index(one.word), order.index(one.severity)))


def _missing(nodes: Iterable[FleetNode]) -> Iterator[Outlier]:
    """Yield an entry for each reason of missing nodes, the most frequent first."""
    reasons: dict[str, list[FleetNode]] = {}
    for node in nodes:
        if node.missing:
            reasons.setdefault(node.missing, []).append(node)
    for reason, found in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        yield Outlier(word=MISSING, nodes=tuple(found), reasons=(reason,))


def _node(node: FleetNode) -> Iterator[Outlier]:
    """Yield the entry of a node itself, if something is wrong with it."""
    if node.missing or (node.gpus and not node.bad):
        return
    own = Verdict.INCOMPLETE if not node.bad else Verdict(node.bad[0].status.value.upper())
    nothing = () if node.gpus else ("no GPU was tested",)
    yield Outlier(
        word=node.word if not node.gpus else own.value,
        nodes=(node,),
        reasons=(*(_brief([one]) for one in node.bad), *nothing),
        severity=_severity(node.bad),
        action=node.bad[0].action if node.bad else "",
    )


def _gpus(node: FleetNode) -> Iterator[Outlier]:
    """Yield the GPUs of a node; those with the same checks and the same missing parts together."""
    alike: dict[tuple[object, ...], list[FleetGpu]] = {}
    for gpu in node.gpus:
        if gpu.verdict.value in LISTED:
            checks = tuple((one.id, one.status) for one in gpu.bad)
            alike.setdefault((gpu.verdict, checks, gpu.gpu.incomplete), []).append(gpu)
    for gpus in alike.values():
        first = gpus[0]
        results = zip(*(one.bad for one in gpus), strict=True)
        yield Outlier(
            word=first.verdict.value,
            nodes=(node,),
            gpus=tuple(gpus),
            reasons=(*(_brief(one) for one in results), *first.gpu.incomplete),
            severity=_severity(first.bad),
            action=first.bad[0].action if first.bad else "",
        )


def _severity(results: Iterable[CheckResult]) -> Severity:
    """Find the worst severity of checks that failed or warned."""
    found = {one.severity for one in results}
    return next((one for one in _SEVERITIES if one in found), Severity.UNKNOWN)


def _brief(results: Sequence[CheckResult]) -> str:
    """Describe the results of one check on one or more GPUs: the evidence of the first."""
    first = results[0]
    if first.value is None:
        text = first.id
    else:
        values = sorted({one.value for one in results if isinstance(one.value, int | float)})
        unit = f" {first.unit}" if first.unit else ""
        if len(values) > 1:
            text = f"{first.id}: {format_value(values[0])} to {format_value(values[-1])}{unit}"
        else:
            text = f"{first.id}: {format_value(first.value, first.unit)}"
    return f"{text}: {first.evidence}" if first.evidence else text
