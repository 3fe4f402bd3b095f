"""The checks of a workload by its trial: what it did wrong, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from sentinel.burnin.checks.catalogue import Table
from sentinel.burnin.checks.check import Judgement, Limits, Status, Thresholds
from sentinel.burnin.record import GpuRecord
from sentinel.protocol.commands import COUNTS, PhaseWork
from sentinel.protocol.stressor import MAX_QUANTUM_S, FailureKind
from sentinel.units import format_duration, format_size

TABLE = Table()

#: The beginning of the ids; what follows is the kind of a problem.
_PREFIX = "workload."

#: Changes of the used memory up to this size are noise. CUDA programs that start on other GPUs of
#: the host change it by 64 KiB for a moment.
_NOISE = 2**20

#: The failures without which nothing was tried: no stressor can run.
_UNUSABLE = frozenset({FailureKind.UNUSABLE, FailureKind.MALFORMED, FailureKind.SPAWN})


class TrialResult(StrEnum):
    """The result of a trial."""

    WELL = "well"
    REMARKS = "remarks"
    """It broke no rule, but a check warns."""
    MISBEHAVED = "misbehaved"
    UNUSABLE = "unusable"
    """It cannot be imported, refused its options, or nothing could run here."""
    INCOMPLETE = "incomplete"
    """Another process needed the GPU, or the trial was interrupted."""


@dataclass(frozen=True, kw_only=True)
class HostUse:
    """What the stressor took of the host while the workload ran."""

    #: CPU time of all its threads, in cores.
    cores: float
    #: The most resident memory in bytes, with the libraries that other processes share.
    memory: int


@dataclass(frozen=True, kw_only=True)
class TrialEvidence:
    """What was recorded of one workload on one GPU."""

    record: GpuRecord
    #: None if it was not sampled twice.
    host: HostUse | None = None
    #: The failure that the stressor reported, also one after the request to stop.
    reported: Mapping[str, Any] | None = None
    #: The signal that ended the trial early.
    interrupted: str | None = None

    def last(self, *names: str) -> Mapping[str, Any] | None:
        """Find the last event with one of these names."""
        return next(reversed(self.record.named(*names)), None)

    @property
    def ready(self) -> Mapping[str, Any] | None:
        """The event of the stressor that was ready, or None."""
        return self.last("stressor.ready")

    @property
    def work(self) -> PhaseWork:
        """What was done."""
        return self.record.phases[0].work

    @cached_property
    def running(self) -> list[Mapping[str, Any]]:
        """The states of the GPU while the workload ran."""
        return [event for event in self.record.named("gpu.status") if "running_s" in event]

    def values(self, name: str) -> list[float]:
        """Collect a reading while the workload ran."""
        return [event[name] for event in self.running if event.get(name) is not None]

    @property
    def quanta(self) -> list[float]:
        """The longest quantum of each report of the workload."""
        # Two states may have the same report.
        return list(dict.fromkeys(self.values("longest_quantum_s")))

    @property
    def failure(self) -> Mapping[str, Any] | None:
        """The ``kind`` and ``reason`` of the failure of the stressor, or None."""
        failed = self.last("stressor.failed", "stressor.fatal")
        # A stressor that fails beside a newcomer is no fault of the workload.
        return failed or (self.reported if self.newcomer is None else None)

    @property
    def newcomer(self) -> Mapping[str, Any] | None:
        """The event of the yield to a newcomer, or None."""
        return self.last("gpu.yielding")

    @property
    def newcomers(self) -> str:
        """The processes that the GPU was needed by, as far as the driver lists them."""
        if self.newcomer is None:
            return ""
        events = self.record.named("gpu.yielding", "gpu.busy", "gpu.handed_over")
        since = events.index(self.newcomer)
        named = (describe_processes(event.get("processes", ())) for event in events[since:])
        unlisted = "an unlisted process that computes"
        return next(
            filter(None, named), unlisted if self.newcomer["evidence"] == "computing" else ""
        )

    @property
    def waiting(self) -> str | None:
        """Why the GPU had no stressor when it was seen last, or None."""
        seen = self.last("gpu.status")
        if seen is None or "running_s" in seen:
            return None
        return ": ".join(filter(None, (seen["reason"], describe_processes(seen["processes"]))))

    @property
    def stop(self) -> Mapping[str, Any] | None:
        """The end of the stressor after a request to stop, or None."""
        stopped = self.last("stressor.stopped")
        return stopped if stopped is not None and stopped["cause"] == "policy" else None

    @property
    def grown(self) -> int:
        """How many bytes the used memory grew after the workload was ready."""
        used = self.values("memory_used")
        yielded = self.newcomer["grown"] if self.newcomer is not None else 0
        return max(yielded or 0, int(max(used) - used[0]) if used else 0)

    @property
    def incomplete(self) -> str | None:
        """Why the trial is incomplete without a fault of the workload, or None."""
        if self.interrupted is not None:
            return f"it was ended by {self.interrupted}"
        if self.last("stressor.starting") is None:
            return f"no GPU was idle: {self.waiting or 'none was read in time'}"
        if self.newcomers:
            return f"the GPU was needed by {self.newcomers}"
        if self.newcomer is not None:
            started = self.ready is not None
            return (
                None
                if started
                else "another process took memory of the GPU while the workload started"
            )
        if self.failure is None and self.stop is None:
            return f"the stressor was released: {self.waiting or 'the reason is unknown'}"
        return None


def describe_processes(listed: Any) -> str:
    """Format processes for people."""
    return ", ".join(
        f"{process.get('name') or 'a process'} (pid {process['pid']})" for process in listed
    )


# --- the checks ------------------------------------------------------------------------------


@TABLE.rule("failure")
def _failure(evidence: TrialEvidence, _: Limits, kind: str) -> Judgement:
    """Judge whether the stressor failed in this way."""
    failure = evidence.failure
    if failure is None or failure["kind"] != kind:
        return Judgement(status=Status.PASS)
    return Judgement(status=Status.FAIL, evidence=failure["reason"])


@TABLE.check("workload.memory_growth")
def memory_growth(evidence: TrialEvidence, _: Limits) -> Judgement:
    """Judge the growth of the used memory after Ready."""
    grown = evidence.grown
    what = f"the used memory grew by {format_size(grown)} after it was ready"
    if evidence.newcomer is None:
        status = Status.FAIL if grown > _NOISE else Status.PASS
        return Judgement(status=status, value=grown, evidence=what)
    if evidence.newcomers or evidence.ready is None:
        return Judgement(status=Status.NOT_TESTED, evidence="a newcomer took memory")
    hidden = any(not event["complete"] for event in evidence.record.named("gpu.identity"))
    hint = " (processes may be hidden here)" if hidden else ""
    what += f", and no other process is listed on the GPU{hint}: sentinel yielded"
    return Judgement(status=Status.FAIL, value=grown, evidence=what)


@TABLE.check("workload.long_quantum")
def long_quantum(evidence: TrialEvidence, _: Limits) -> Judgement:
    """Judge the longest time between two calls of ``ctx.pace()``."""
    longest = max(evidence.quanta, default=0.0)
    long = sum(quantum > MAX_QUANTUM_S for quantum in evidence.quanta)
    if long < 2 and 2 * long <= len(evidence.quanta):  # noqa: PLR2004 - as said
        return Judgement(status=Status.PASS, value=longest)
    what = (
        f"up to {format_duration(longest)} between two calls of ctx.pace(); "
        f"at most {format_duration(MAX_QUANTUM_S)} is allowed"
    )
    return Judgement(status=Status.FAIL, value=longest, evidence=what)


@TABLE.check("workload.slow_stop")
def slow_stop(evidence: TrialEvidence, _: Limits) -> Judgement:
    """Judge whether the stressor had to be killed at its stop."""
    stop = evidence.stop
    asked = evidence.ready is not None and evidence.interrupted is None
    if not evidence.record.is_unkillable and not (asked and stop is not None and stop["killed"]):
        return Judgement(status=Status.PASS)
    after = "" if stop is None else f" within {format_duration(stop['stop_s'])}"
    what = f"it did not stop{after} after the request, and was killed"
    return Judgement(status=Status.FAIL, evidence=what)


@TABLE.check("workload.wrong_results")
def wrong_results(evidence: TrialEvidence, _: Limits) -> Judgement:
    """Count the wrong results and findings that were reported."""
    errors, findings = (
        evidence.work.errors,
        len(evidence.record.named("stressor.finding")),
    )
    if not errors and not findings:
        return Judgement(status=Status.PASS)
    what = (
        f"{errors} results were reported as wrong, with evidence of {findings} faults: "
        "this GPU, or the workload's check, cannot be trusted"
    )
    return Judgement(status=Status.FAIL, value=errors, evidence=what)


@TABLE.check("workload.no_report")
def no_report(evidence: TrialEvidence, _: Limits) -> Judgement:
    """Judge whether any work was reported."""
    seconds = evidence.work.seconds
    if not seconds or any(getattr(evidence.work, count) for count in COUNTS):
        return Judgement(status=Status.PASS)
    what = f"it reported no work in {format_duration(seconds)}"
    return Judgement(status=Status.WARN, evidence=what)


# --- the result ------------------------------------------------------------------------------


def problems_of(evidence: TrialEvidence) -> list[dict[str, str]]:
    """List the failed checks of a trial: the ``kind``, ``what`` was seen, and what to ``do``."""
    return _found(evidence, Status.FAIL)


def remarks_of(evidence: TrialEvidence) -> list[dict[str, str]]:
    """List the checks that warn, as those that failed."""
    return _found(evidence, Status.WARN)


def _found(evidence: TrialEvidence, status: Status) -> list[dict[str, str]]:
    return [
        {"kind": found.id.removeprefix(_PREFIX), "what": found.evidence, "do": found.action}
        for found in TABLE.run(evidence, Thresholds())
        if found.status is status
    ]


def result_of(evidence: TrialEvidence) -> TrialResult:
    """Choose the result of a trial."""
    if problems := problems_of(evidence):
        unusable = all(problem["kind"] in _UNUSABLE for problem in problems)
        return TrialResult.UNUSABLE if unusable else TrialResult.MISBEHAVED
    if evidence.incomplete is not None:
        return TrialResult.INCOMPLETE
    return TrialResult.REMARKS if remarks_of(evidence) else TrialResult.WELL
