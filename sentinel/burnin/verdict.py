"""The verdict of a burn-in: for each GPU, and for the node. Pure."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sentinel.burnin.checks.check import CheckResult, Status, Thresholds, worst_first
from sentinel.burnin.checks.expected_checks import unproved
from sentinel.burnin.checks.measures import format_seconds, format_value
from sentinel.burnin.checks.required_evidence import missing_evidence
from sentinel.burnin.record import GpuRecord, PhaseRecord
from sentinel.config.options import BUILT_IN
from sentinel.config.plan import Plan
from sentinel.config.specs import parse_workload
from sentinel.errors import ExitCode
from sentinel.units import format_duration

#: The least work with checked results for a PASS, in seconds: a `screen`, which proves nothing,
#: takes a minute with its starts. Only built-in workloads count: what others check is not known.
MIN_CHECKED_S = 60.0

#: The check of how much of the memory was tested.
_COVERED = "memory.covered"

#: How the reason begins that is about a phase, by its name.
NOT_COMPLETE = "phase {} not complete: "

#: The most that Kubernetes keeps of a termination message, in bytes
#: (kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure).
MAX_BYTES = 4096
SCHEMA_VERSION = 1
#: The lengths to which reasons are cut, in characters, until the object fits.
_REASON_CHARACTERS = (200, 80, 30, 0)
#: The verdicts of GPUs that need no attention, which are left out first.
_GOOD = frozenset({"PASS", "N/A"})

#: What is said of other limits, if there are some.
_OF_OTHER_LIMITS = ("judged_again_by", "correctness_overridden")


class Verdict(StrEnum):
    """What an acceptance engineer signs, the worst first."""

    FAIL = "FAIL"
    INCOMPLETE = "INCOMPLETE"
    WARN = "WARN"
    #: Too little was done for a verdict, and nothing was found.
    NOT_APPLICABLE = "N/A"
    PASS = "PASS"  # noqa: S105 - not a password


#: What each verdict means, for people.
MEANING: Mapping[Verdict, str] = {
    Verdict.FAIL: "a fault was found",
    Verdict.INCOMPLETE: "no fault was found, and not everything was done",
    Verdict.WARN: "everything was done; something needs attention",
    Verdict.PASS: "everything was done, and no fault was found",
    Verdict.NOT_APPLICABLE: "too little was done for a PASS, and no fault was found",
}
#: What a WARN means where it does not pass.
STRICT_WARN = f"{MEANING[Verdict.WARN]}, which does not pass (--strict)"

EXIT_CODES: Mapping[Verdict, ExitCode] = {
    Verdict.FAIL: ExitCode.FAIL,
    Verdict.INCOMPLETE: ExitCode.INCOMPLETE,
    Verdict.WARN: ExitCode.OK,
    Verdict.PASS: ExitCode.OK,
    Verdict.NOT_APPLICABLE: ExitCode.OK,
}


_STRICT = {Verdict.WARN: ExitCode.FAIL, Verdict.NOT_APPLICABLE: ExitCode.INCOMPLETE}


def exit_code(verdict: Verdict, *, strict: bool) -> ExitCode:
    """Choose the exit code of a verdict; of a strict command it is 0 for PASS alone."""
    return (_STRICT if strict else {}).get(verdict, EXIT_CODES[verdict])


@dataclass(frozen=True, kw_only=True)
class GpuVerdict:
    """The verdict on one GPU with everything that it is based on."""

    record: GpuRecord
    verdict: Verdict
    results: tuple[CheckResult, ...]
    #: What is missing of the plan, or not known.
    incomplete: tuple[str, ...]
    #: Why it is too short for a PASS, and takes no FAIL back; None if it is not.
    too_short: str | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not PASS, in the order of importance: faults, what is missing, the rest."""
        worst = worst_first(self.results)
        faults = [result for result in worst if result.status is Status.FAIL]
        others = worst[len(faults) :]
        found = (*map(describe_result, faults), *self.incomplete, *map(describe_result, others))
        return found if self.too_short is None else (*found, self.too_short)


def judge_gpu(
    record: GpuRecord,
    results: Sequence[CheckResult],
    plan: Plan,
    twins: Collection[str] = (),
    thresholds: Thresholds = Thresholds(),  # noqa: B008 - frozen
    *,
    alone: bool = False,
) -> GpuVerdict:
    """Judge a GPU by the results of its checks and by what it has done of the plan.

    Args:
        record: The GPU.
        results: Of its checks.
        plan: The plan.
        twins: The checks that have judged another GPU of its model.
        thresholds: By which the results were judged.
        alone: Whether NVML lists no other GPU.
    """
    short = _too_short(record, plan, results)
    found = {result.status for result in results if result.id != _COVERED or short is None}
    unproved = thresholds.why_unproved
    missing = [unproved] if unproved is not None else []
    missing += [text for phase in record.phases if (text := _missing(phase, record)) is not None]
    unknown = _unknown(record)
    # Without the GPU, its counters or results, that is the reason; each check would repeat it.
    is_lost = any(one.id == "gpu.lost" and one.status is Status.FAIL for one in results)
    if not is_lost:
        before = record.before
        missing += unknown or missing_evidence(
            results,
            has_steady=any(phase.steady for phase in plan.phases),
            name="" if before is None else before.name,
            ecc=None if before is None else before.ecc,
            twins=twins,
            alone=alone,
        )
    if Status.FAIL in found:
        verdict = Verdict.FAIL
    elif missing:
        verdict = Verdict.INCOMPLETE
    elif short is not None and Status.WARN not in found:
        verdict = Verdict.NOT_APPLICABLE
    elif Status.WARN in found:
        verdict = Verdict.WARN
    else:
        verdict = Verdict.PASS
    return GpuVerdict(
        record=record,
        verdict=verdict,
        results=tuple(results),
        incomplete=tuple(missing),
        too_short=short,
    )


def judge_node(gpus: Iterable[GpuVerdict], node: Iterable[CheckResult] = ()) -> Verdict:
    """Judge a node by its GPUs and its own checks: the worst of them; nothing is INCOMPLETE."""
    verdicts, node = {gpu.verdict for gpu in gpus}, list(node)
    statuses = {result.status for result in node}
    if Status.FAIL in statuses:
        verdicts.add(Verdict.FAIL)
    if not verdicts or unproved(node):
        verdicts.add(Verdict.INCOMPLETE)
    if Status.WARN in statuses:
        verdicts.add(Verdict.WARN)
    return next(verdict for verdict in Verdict if verdict in verdicts)


def first_reason(gpus: Iterable[GpuVerdict], node: Iterable[CheckResult]) -> str | None:
    """Name the worst of a node with its value, its limit and what to do; None if all is well."""
    found = [(f"GPU {gpu.record.index}", result) for gpu in gpus for result in gpu.results]
    found += [("node", result) for result in node]
    by_status = {
        status: [(place, result) for place, result in found if result.status is status]
        for status in (Status.FAIL, Status.WARN)
    }
    missing = [f"GPU {gpu.record.index}: {text}" for gpu in gpus for text in gpu.incomplete]
    missing += [f"node: {text}" for text in unproved(node)]
    if not by_status[Status.FAIL] and missing:
        return missing[0]
    for place, result in (*by_status[Status.FAIL], *by_status[Status.WARN]):
        value = "" if result.value is None else f" {format_value(result.value, result.unit)}"
        why = f": {result.evidence}" if result.evidence else ""
        return f"{place}: {result.id}{value} ({result.threshold}){why}. {result.action}"
    return None


def describe_result(result: CheckResult) -> str:
    """Describe a result that is not PASS in one line."""
    value = "" if result.value is None else f" {format_value(result.value, result.unit)}"
    text = f"{result.id}:{value} ({result.threshold}; {result.source})"
    return f"{text}: {result.evidence}" if result.evidence else text


def _too_short(record: GpuRecord, plan: Plan, results: Iterable[CheckResult] = ()) -> str | None:
    """Explain why a run is too short for a PASS, or tested too little memory, or return None."""
    if plan.screen:
        return "a screen is too short for a PASS"
    for result in results:
        if result.id == _COVERED and result.status is Status.WARN:
            return (
                f"{result.value} of the memory was tested; a PASS needs more ({result.threshold})"
            )
    done = sum(phase.done for phase in record.phases if _is_verified(phase))
    if done >= MIN_CHECKED_S:
        return None
    seconds, least = format_seconds(done), format_duration(MIN_CHECKED_S)
    return f"{seconds} of work with checked results of built-in workloads; a PASS needs {least}"


def _is_verified(phase: PhaseRecord) -> bool:
    """Check whether a built-in workload has checked the results of a phase."""
    asked = phase.phase
    return asked.checked and parse_workload(asked.workload)[0] in BUILT_IN


def _unknown(record: GpuRecord) -> list[str]:
    """Describe what a PASS would have to know."""
    found = []
    if not any(phase.work.checks for phase in record.phases):
        found.append("no result was checked")
    found += [
        f"phase {phase.phase.name} checked nothing"
        for phase in record.phases
        if phase.complete and phase.phase.checked and not phase.work.checks and not found
    ]
    if record.before is None:
        found.append("its counters before the run are not known")
    elif (why := record.before.why_unread) is not None:
        found.append(f"its counters before the run are not known: {why}")
    elif record.after is None:
        found.append("its counters after the run are not known: the run was cut off")
    elif (why := record.after.why_unread) is not None:
        found.append(f"its counters after the run are not known: {why}")
    found += _read_too_late(record)
    if record.parts > len(record.resumed) + 1:
        found.append("its counters between two parts are not known")
    if record.ended == "" and record.unfinished is None:
        found.append("its record does not say that it has ended")
    if not record.closed and record.after is not None:
        found.append("its samples end before the run does")
    if record.dropped:
        found.append(f"{record.dropped} events or samples are missing, or could not be recorded")
    return found


def _read_too_late(record: GpuRecord) -> Iterator[str]:
    """Describe counters that were not read before and after all phases; a run has one boot."""
    began = [phase.began for phase in record.phases if phase.began is not None]
    ended = [phase.ended for phase in record.phases if phase.ended is not None]
    if record.resumed:
        return
    if record.before is not None and began and record.before.at > min(began):
        yield "its counters before the run were read after its first phase had begun"
    if record.after is not None and ended and record.after.at < max(ended):
        yield "its counters after the run were read before its last phase had ended"


def _missing(phase: PhaseRecord, record: GpuRecord) -> str | None:
    """Describe what is missing of a phase, or return None.

    Without a phase that is not mandatory there is a verdict if the GPU could not do it, and none if
    the run was cut short before.
    """
    given_up = phase.work.given_up
    if phase.complete or (given_up is not None and not phase.phase.mandatory):
        return None
    name, asked = phase.phase.name, phase.phase
    cut = phase.began is not None and phase.ended is None
    why = given_up or record.ended
    why = why or ("the record ends in it" if cut else "it was not reached")
    parts = []
    if asked.seconds:
        stretch = " in one stretch" if asked.in_one_stretch else ""
        done, wanted = format_duration(phase.done), format_duration(asked.seconds)
        parts.append(f"{done if phase.done else '0 s'} of {wanted}{stretch}")
    if asked.passes:
        parts.append(f"{phase.passes} of {asked.passes} passes")
    return f"{NOT_COMPLETE.format(name)}{', '.join(parts)}: {why}"


# --- the summary -----------------------------------------------------------------------------


def judged_by(report: Mapping[str, Any]) -> str:
    """Return the version by whose rules a report was judged; one of an earlier version has none."""
    return str(report.get("judged_by", report["run"]["version"]))


def verdict_summary(report: Mapping[str, Any]) -> str:
    """Build the summary of a report; the more GPUs there are, the less it says about each.

    It always has the verdict of the node and the number of GPUs with each verdict. As far as they
    fit, it has the meaning of the verdict with its first reason, which may be of the node itself,
    and the GPUs that did not pass, FAIL first. `gpus_left_out` counts those that did not fit.

    Args:
        report: The report, as `report.json` has it.
    """
    gpus = sorted(report["gpus"], key=lambda gpu: (gpu["verdict"] != "FAIL", gpu["index"]))
    bad = [gpu for gpu in gpus if gpu["verdict"] not in _GOOD]
    for chosen in (gpus, bad):
        for characters in _REASON_CHARACTERS:
            text = _text(report, chosen, characters)
            if len(text) <= MAX_BYTES:
                return text
    # Hundreds of faulty GPUs: the first that fit.
    numbers = range(1, len(bad) + 1)
    fitting = bisect_right(
        numbers, MAX_BYTES, key=lambda number: len(_text(report, bad[:number], 0))
    )
    return _text(report, bad[:fitting], 0)


def _text(report: Mapping[str, Any], gpus: list[Mapping[str, Any]], characters: int) -> str:
    """Write the summary with these GPUs; ASCII, so that a character is a byte."""
    run = report["run"]
    return json.dumps(
        {
            "schema_version": SCHEMA_VERSION,
            "node": report["node"]["hostname"],
            "run": run["id"],
            "plan": run["plan"]["name"],
            "ended": run["ended"],
            "verdict": report["verdict"],
            "judged_by": judged_by(report),
            **({"meaning": _cut(report["meaning"], characters)} if characters else {}),
            **{name: report[name] for name in _OF_OTHER_LIMITS if report.get(name)},
            "summary": {name: count for name, count in report["summary"].items() if count},
            "gpus": [_gpu(gpu, characters) for gpu in gpus],
            "gpus_left_out": len(report["gpus"]) - len(gpus),
        },
        separators=(",", ":"),
    )


def _gpu(gpu: Mapping[str, Any], characters: int) -> dict[str, Any]:
    """Describe one GPU, with its first reason cut to a length."""
    found = {name: gpu[name] for name in ("index", "uuid", "serial", "verdict")}
    reasons = gpu["reasons"]
    if reasons and characters:
        found |= {"reason": _cut(str(reasons[0]), characters), "reasons": len(reasons)}
    return found


def _cut(text: str, characters: int) -> str:
    """Cut a text to a number of characters."""
    return text if len(text) <= characters else f"{text[: characters - 3]}..."
