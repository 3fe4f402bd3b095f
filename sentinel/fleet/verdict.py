"""The verdict of a fleet: of each GPU, of each node and of all together. Pure.

A comparison can make a node's own verdict worse, never better; a missing node is never PASS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from sentinel.burnin.checks.check import CheckResult, Limits, Status, Thresholds, worst_first
from sentinel.burnin.checks.evidence import NOTHING
from sentinel.burnin.checks.expected_checks import unproved
from sentinel.burnin.checks.golden_checks import by_key, count_votes, stored_before
from sentinel.burnin.verdict import Verdict, describe_result
from sentinel.config.expectation import Expectation
from sentinel.fleet.acceptance import Acceptance
from sentinel.fleet.expected import expectation_of, judge_by
from sentinel.fleet.fleet_checks import (
    CHECKS,
    FleetGpuEvidence,
    FleetNodeEvidence,
    Hardware,
    NodeGroup,
    groups_of,
    hardware_of,
    unlike_others,
)
from sentinel.fleet.node_files import FleetFiles
from sentinel.fleet.node_names import fold_names
from sentinel.fleet.node_result import GpuResult, NodeFile, NodeResult
from sentinel.fleet.run_folder import FleetRun
from sentinel.units import format_count

#: The word for a node without a report; for exit codes it is INCOMPLETE.
MISSING = "MISSING"

#: So many different reasons for a comparison that could not be made are listed.
MAX_NOT_COMPARED = 8

#: So many names of files are in a notice.
_MAX_NAMES = 5

#: All words of nodes, the worst first.
WORDS = (
    Verdict.FAIL.value,
    MISSING,
    *(verdict.value for verdict in Verdict if verdict is not Verdict.FAIL),
)


@dataclass(frozen=True, kw_only=True)
class FleetGpu:
    """One GPU with its verdict in the fleet."""

    node: str
    gpu: GpuResult
    #: The number of its group.
    group: int
    verdict: Verdict
    #: The comparisons that failed or warned, the failed ones first.
    results: tuple[CheckResult, ...]
    #: The comparisons that could not be made, and why.
    not_tested: tuple[str, ...]
    #: Why its node's report is not accepted, and what of the fleet's expectation is not known.
    unproved: tuple[str, ...] = ()

    @property
    def bad(self) -> tuple[CheckResult, ...]:
        """The checks of its node and the comparisons that failed or warned, failed ones first."""
        return worst_first((*self.gpu.checks, *self.results))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not PASS: what was found, then what is missing."""
        return (*map(describe_result, self.bad), *self.gpu.incomplete, *self.unproved)


@dataclass(frozen=True, kw_only=True)
class FleetNode(NodeFile):
    """The report of one node, or why it is missing, with its verdict in the fleet."""

    #: INCOMPLETE if it is missing.
    verdict: Verdict = Verdict.INCOMPLETE
    gpus: tuple[FleetGpu, ...] = ()
    #: The comparisons of the node that failed or warned, the failed ones first.
    results: tuple[CheckResult, ...] = ()
    #: Why its report is not accepted, whatever it has found.
    refused: tuple[str, ...] = ()
    #: What of it was not tested, or is not known of the fleet's expectation.
    unproved: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """One of WORDS."""
        return MISSING if self.missing else self.verdict.value

    @property
    def bad(self) -> tuple[CheckResult, ...]:
        """The node's own checks and comparisons that failed or warned, the failed ones first."""
        own = self.result.checks if self.result is not None else ()
        return worst_first((*own, *self.results))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not PASS, without the reasons of its GPUs."""
        if self.missing:
            return (self.missing, self.last_seen) if self.last_seen else (self.missing,)
        return (*(describe_result(result) for result in self.bad), *self.incomplete)

    @property
    def incomplete(self) -> tuple[str, ...]:
        """Why its report proves nothing, or not what was wanted."""
        nothing = () if self.gpus or self.missing else ("no GPU was tested",)
        return (*self.refused, *self.unproved, *nothing)


@dataclass(frozen=True, kw_only=True)
class FleetVerdict:
    """The verdict of a fleet with everything that it is based on."""

    run: FleetRun | None
    verdict: Verdict
    #: By name.
    nodes: tuple[FleetNode, ...]
    groups: tuple[NodeGroup, ...]
    #: What a reader must know before the verdicts.
    notices: tuple[str, ...]
    #: Why the number of nodes is not the expected one; empty if it is, or none is expected.
    wrong_number: str = ""
    thresholds: Thresholds
    #: The file of other thresholds than those of the run; None if it is judged by its own.
    judged_again_by: str | None = None
    #: Whether a WARN does not pass, however the run was begun.
    read_strictly: bool = False

    @property
    def strict(self) -> bool:
        """Whether a WARN ends with 1."""
        return self.read_strictly or (self.run is not None and self.run.strict)

    @cached_property
    def gpus(self) -> tuple[FleetGpu, ...]:
        """All GPUs, by node and index."""
        return tuple(gpu for node in self.nodes for gpu in node.gpus)

    @cached_property
    def results(self) -> tuple[NodeResult, ...]:
        """The reports of all nodes that are not missing."""
        return tuple(node.result for node in self.nodes if node.result is not None)

    @property
    def node_counts(self) -> dict[str, int]:
        """How many nodes have each word."""
        found = Counter(node.word for node in self.nodes)
        return {word: found[word] for word in WORDS}

    @property
    def gpu_counts(self) -> dict[str, int]:
        """How many GPUs have each verdict; those of missing nodes are not known."""
        found = Counter(gpu.verdict.value for gpu in self.gpus)
        return {verdict.value: found[verdict.value] for verdict in Verdict}

    @property
    def not_compared(self) -> list[tuple[str, int]]:
        """The comparisons that could not be made, with the number of GPUs, most frequent first."""
        found = Counter(text for gpu in self.gpus for text in gpu.not_tested)
        return sorted(found.items(), key=lambda item: (-item[1], item[0]))[:MAX_NOT_COMPARED]

    def limits_of(self, check: str) -> Limits:
        """Find the limits of a comparison that are in force."""
        return self.thresholds.of(check, CHECKS[check].limits)


def judge_fleet(
    files: FleetFiles,
    thresholds: Thresholds,
    expectation: Expectation = NOTHING,
    acceptance: Acceptance | None = None,
    judged_again_by: str | None = None,
) -> FleetVerdict:
    """Judge a fleet by what its nodes have reported, whatever the order of the files.

    Args:
        files: The reports.
        thresholds: For the comparisons.
        expectation: What each node must be, beside its own expectation.
        acceptance: What a report must be; None accepts each.
        judged_again_by: The file of the thresholds, if they are not those of the run.
    """
    files = replace(files, nodes=tuple(sorted(files.nodes, key=lambda node: node.name)))
    groups = groups_of(files.nodes)
    by_hardware = {group.hardware: group for group in groups}
    results = [node.result for node in files.nodes if node.result is not None]
    votes = count_votes(by_key(gpu.golden_checksums) for result in results for gpu in result.gpus)
    unlike = unlike_others(
        files.nodes,
        lambda result, model, name: any(
            name in one.of(model) for one in (expectation, expectation_of(result))
        ),
    )
    nodes = tuple(
        _judge_node(
            node,
            by_hardware,
            votes,
            thresholds,
            acceptance,
            expectation=expectation,
            unlike=unlike.get(node.name, ()),
        )
        for node in files.nodes
    )
    verdicts = {node.verdict for node in nodes if not node.unlisted}
    wrong_number = _wrong_number(files)
    stopped = any(node.unlisted and node.refused for node in nodes)
    if wrong_number or stopped or not verdicts:
        verdicts.add(Verdict.INCOMPLETE)
    return FleetVerdict(
        run=files.run,
        verdict=_worst(verdicts),
        nodes=nodes,
        groups=groups,
        notices=(*_unlisted(nodes), *_notices(files, expectation)),
        wrong_number=wrong_number,
        thresholds=thresholds,
        judged_again_by=judged_again_by,
    )


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    found = set(verdicts)
    return next(verdict for verdict in Verdict if verdict in found)


def _worse(own: Verdict, results: Iterable[CheckResult]) -> Verdict:
    """Make a verdict worse by what was found; nothing makes it better."""
    statuses = {result.status for result in results}
    found = {own}
    if Status.FAIL in statuses:
        found.add(Verdict.FAIL)
    if Status.WARN in statuses:
        found.add(Verdict.WARN)
    return _worst(found)


def _judge_node(
    node: NodeFile,
    groups: Mapping[Hardware, NodeGroup],
    votes: Mapping[str, Counter[str]],
    thresholds: Thresholds,
    acceptance: Acceptance | None,
    *,
    expectation: Expectation,
    unlike: Sequence[str],
) -> FleetNode:
    """Judge a node by its own verdict, its GPUs and what stands out in comparison."""
    result = node.result
    if result is None:
        return FleetNode(**vars(node))
    again = result.judged_again_by and f"it was judged again by {result.judged_again_by}"
    asked = () if acceptance is None else acceptance.refuse(result)
    refused = tuple(filter(None, (again, thresholds.why_unproved, *asked)))
    stored = stored_before(checksum for gpu in result.gpus for checksum in gpu.golden_checksums)
    by_expectation = judge_by(expectation, result)
    members = [(gpu, groups[hardware_of(gpu, result)]) for gpu in result.gpus]
    gpus = tuple(
        _judge_gpu(
            node.name,
            FleetGpuEvidence(gpu=gpu, group=group, votes=votes, stored=stored),
            thresholds,
            expected,
            refused,
        )
        for (gpu, group), expected in zip(members, by_expectation.gpus, strict=True)
    )
    found: list[CheckResult] = [*by_expectation.node]
    unknown = tuple(dict.fromkeys((*unproved(found), *result.unproved)))
    if members:
        # The node is compared by the hardware that most of its GPUs are.
        number, _ = Counter(group.number for _, group in members).most_common(1)[0]
        group = next(group for _, group in members if group.number == number)
        evidence = FleetNodeEvidence(
            gpus=tuple(gpu for gpu, other in members if other is group),
            group=group,
            unlike=unlike,
        )
        found += CHECKS.run(evidence, thresholds)
    bad = worst_first(found)
    own = {_worse(result.verdict, (*result.checks, *bad)), *(gpu.verdict for gpu in gpus)}
    if unknown or refused or not gpus:
        own.add(Verdict.INCOMPLETE)
    is_strict = acceptance is not None and acceptance.strict
    if node.unlisted and (is_strict or Verdict.FAIL in own):
        own.add(Verdict.INCOMPLETE)
        refused += (f"node {node.name} is not on the list",)
    return FleetNode(
        **vars(node),
        verdict=_worst(own),
        gpus=gpus,
        results=bad,
        refused=refused,
        unproved=unknown,
    )


def _judge_gpu(
    node: str,
    evidence: FleetGpuEvidence,
    thresholds: Thresholds,
    expected: CheckResult | None,
    refused: tuple[str, ...],
) -> FleetGpu:
    """Judge a GPU by its own verdict, what is expected, and what stands out in comparison."""
    found = CHECKS.run(evidence, thresholds)
    wanted = [] if expected is None else [expected]
    bad, unknown = worst_first([*wanted, *found]), (*unproved(wanted), *refused)
    own = _worst({evidence.gpu.verdict, *({Verdict.INCOMPLETE} if unknown else ())})
    return FleetGpu(
        node=node,
        gpu=evidence.gpu,
        group=evidence.group.number,
        verdict=_worse(own, (*evidence.gpu.checks, *bad)),
        results=bad,
        unproved=unknown,
        not_tested=tuple(
            f"{result.id}: {result.evidence}"
            for result in found
            if result.status is Status.NOT_TESTED
        ),
    )


def _notices(files: FleetFiles, expectation: Expectation) -> Iterable[str]:
    """Yield what a reader must know before the verdicts."""
    found = [(node.name, node.result) for node in files.nodes if node.result is not None]
    if files.run is None and not files.expected:
        yield (
            "There is no fleet.json: a node that has written no report is not known here"
            " (--expect-nodes names all)."
        )
    if wrong := _wrong_number(files):
        yield wrong
    uncounted = [name for name, result in found if not result.is_counted]
    if uncounted and expectation.gpus is None:
        names = fold_names(uncounted)
        yield f"The number of GPUs was not checked on {names}: --expect says it."
    if simulated := [name for name, result in found if result.run.simulated]:
        which = "These GPUs" if len(simulated) == len(found) else f"GPUs of {fold_names(simulated)}"
        yield f"{which} are simulated: the report says nothing about hardware."
    renamed = [node for node in files.nodes if node.result is not None and not node.names_itself]
    if renamed and files.run is None:
        shown = [f"{node.name}: {node.result.node.hostname}" for node in renamed if node.result]
        more = ", ..." if len(shown) > _MAX_NAMES else ""
        hosts = ", ".join(shown[:_MAX_NAMES])
        yield f"Reports of hosts that have other names than their files: {hosts}{more}"
    if files.unexpected:
        names = ", ".join(f"{name}.json" for name in files.unexpected[:_MAX_NAMES])
        more = ", ..." if len(files.unexpected) > _MAX_NAMES else ""
        which, verb = format_count(len(files.unexpected), "file"), _were(len(files.unexpected))
        yield f"{which} of no node of this run {verb} not judged: {names}{more}"
    yield from (f"{text}, and was not read." for text in files.copies)
    if overridden := [name for name, result in found if result.thresholds_overridden]:
        which, verb = format_count(len(overridden), "node"), _were(len(overridden))
        names = fold_names(overridden)
        yield f"{which} {verb} judged by thresholds that are not the default: {names}"
    yield from _different(
        "The nodes did different plans, which are not compared",
        ((f"{result.run.plan.name} ({result.run.plan.hash})", name) for name, result in found),
    )
    yield from _different(
        "The nodes were judged by different versions",
        ((result.run.version, name) for name, result in found),
    )


def _unlisted(nodes: Iterable[FleetNode]) -> Iterable[str]:
    """Yield a notice for each node with a report that was not expected."""
    for node in nodes:
        if node.unlisted:
            yield f"Node {node.name} is not on the list; its report is {node.word}."


def _wrong_number(files: FleetFiles) -> str:
    """Explain why the number of reports is not the expected one; empty if it is."""
    found = [node.name for node in files.nodes if node.result is not None]
    if files.number in {None, len(found)}:
        return ""
    expected, names = format_count(files.number or 0, "node"), fold_names(found) or "none"
    return f"{expected} expected, and {len(found):,} have a report: {names}"


def _different(what: str, values: Iterable[tuple[str, str]]) -> Iterable[str]:
    """Yield a notice if nodes have different values: each with its nodes."""
    names: dict[str, list[str]] = {}
    for value, name in values:
        names.setdefault(value, []).append(name)
    if len(names) > 1:
        texts = (f"{value} on {fold_names(found)}" for value, found in sorted(names.items()))
        yield f"{what}: {', '.join(texts)}"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"
