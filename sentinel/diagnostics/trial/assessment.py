"""Assess a trial: each problem of the workload, with what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from sentinel.diagnostics.trial.measurement import Trial
from sentinel.protocol.stressor import MAX_QUANTUM_S, FailureKind, Progress
from sentinel.units import format_duration, format_size

#: Changes of the used memory up to this size are noise. CUDA programs that start on other GPUs of
#: the host change it by 64 KiB for a moment.
_NOISE = 2**20

#: What to do about each kind of failure.
_REMEDIES = {
    FailureKind.WORKLOAD: "Fix the error, or catch it if it is expected.",
    FailureKind.RETURNED: "Continue until ctx.pace() is False: `while ctx.pace(): ...`.",
    FailureKind.MALFORMED: "",  # the reason says what to write
    FailureKind.UNUSABLE: "",
    FailureKind.OUT_OF_MEMORY: "Work in ctx.chunks, and allocate everything else before the "
    "second call of ctx.pace(); or leave more free with --memory.",
    FailureKind.NOT_READY: "Call ctx.pace() twice, and soon: preparation ends at the second call.",
    FailureKind.HANG: "Queue at most ctx.quantum seconds of work between two calls of ctx.pace().",
    FailureKind.PEERS: "Run it in a burn-in, in a phase together: alone, it has no group.",
    FailureKind.STUCK: "Release the GIL in native code, or split the work.",
    FailureKind.GARBAGE: "Do not use the stressor's socket, and report once a round.",
    FailureKind.CRASH: "Check its standard error; a library that it calls may have a bug.",
    FailureKind.SPAWN: "Free processes, memory or file descriptors of this host.",
}

#: A hint for hosts where processes may be hidden.
_UNLISTED = {True: "", False: " (processes may be hidden here)"}


class TrialResult(StrEnum):
    """The result of a trial."""

    WELL = "well"
    MISBEHAVED = "misbehaved"
    UNUSABLE = "unusable"
    """The workload refused its options, or nothing could run here."""
    INCOMPLETE = "incomplete"
    """Another process needed the GPU, or the trial was interrupted."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem: its kind for programs, what was observed, and what to do."""

    kind: str
    what: str
    do: str = ""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict, the problems behind it, and why the trial is incomplete, or None."""

    verdict: TrialResult
    problems: tuple[Problem, ...] = ()
    incomplete: str | None = None


def judge(trial: Trial) -> Judgement:
    """Assess a trial."""
    problems = tuple(_problems(trial))
    incomplete = why_incomplete(trial)
    verdict = TrialResult.WELL if incomplete is None else TrialResult.INCOMPLETE
    if problems:
        verdict = TrialResult.MISBEHAVED
    unusable = {FailureKind.UNUSABLE, FailureKind.SPAWN}
    if problems and all(problem.kind in unusable for problem in problems):
        verdict = TrialResult.UNUSABLE
    return Judgement(verdict=verdict, problems=problems, incomplete=incomplete)


def _too_long(progress: tuple[Progress, ...]) -> bool:
    """Check whether quanta are too long, not just one of them because the host was busy.

    That is so if they were in most of the intervals between messages, or in two of them.
    """
    long = sum(report.max_quantum_s > MAX_QUANTUM_S for report in progress)
    return long >= 2 or 2 * long > len(progress)  # noqa: PLR2004 - as said


def grown(trial: Trial) -> int:
    """Compute how many bytes the used memory grew after Ready."""
    used = [reading.memory.used for reading in trial.readings if reading.memory is not None]
    return max(trial.newcomer or 0, max(used) - used[0] if used else 0)


def _problems(trial: Trial) -> Iterator[Problem]:
    """Yield every problem of the workload."""
    if trial.failure is not None:
        kind = FailureKind(trial.failure.kind)
        yield Problem(kind=kind.value, what=trial.failure.reason, do=_REMEDIES[kind])
    yield from _growth(trial)
    if _too_long(trial.progress):
        longest = max(report.max_quantum_s for report in trial.progress)
        yield Problem(
            kind="long_quantum",
            what=f"up to {format_duration(longest)} between two calls of ctx.pace(); "
            f"at most {format_duration(MAX_QUANTUM_S)} is allowed",
            do="Queue less: ctx.measure(work) measures the time of some work, ctx.quantum is the "
            "time to fill. Do not wait in the loop.",
        )
    if _ignored_the_stop(trial):
        after = f" within {format_duration(trial.stop.after)}" if trial.stop else ""
        yield Problem(
            kind="slow_stop",
            what=f"it did not stop{after} after the request, and was killed",
            do="Return as soon as ctx.pace() is False, and call it every 50 ms or sooner.",
        )
    errors = sum(report.errors for report in trial.progress)
    if errors or trial.findings:
        yield Problem(
            kind="wrong_results",
            what=f"{errors} results were reported as wrong, with evidence of "
            f"{trial.findings} faults: this GPU, or the workload's check, cannot be trusted",
            do="Try a built-in workload such as gemm on this GPU, and this one on another GPU.",
        )


def _growth(trial: Trial) -> Iterator[Problem]:
    """Yield a problem if memory grew after Ready and no known process took it."""
    do = (
        "Allocate all memory, and run each kind of work, before the second call of ctx.pace(); "
        "libraries load kernels and allocate workspace at their first use."
    )
    what = f"the used memory grew by {format_size(grown(trial))} after it was ready"
    if trial.newcomer is not None and not trial.processes and trial.ready is not None:
        what += f", and no other process is listed on the GPU{_UNLISTED[trial.all_listed]}: "
        yield Problem(kind="memory_growth", what=what + "sentinel yielded", do=do)
    elif trial.newcomer is None and grown(trial) > _NOISE:
        yield Problem(kind="memory_growth", what=what, do=do)


def _ignored_the_stop(trial: Trial) -> bool:
    """Check whether it was asked to stop while it ran, and had to be killed."""
    if trial.unkillable:
        return True
    asked = trial.ready is not None and trial.interrupted is None
    return asked and trial.stop is not None and trial.stop.killed


def why_incomplete(trial: Trial) -> str | None:
    """Explain why the trial is incomplete without a fault of the workload, or return None."""
    if trial.interrupted is not None:
        return f"it was ended by {trial.interrupted}"
    if trial.gpu is None:
        return f"no GPU was idle: {trial.waiting or 'none was read in time'}"
    if trial.newcomer is not None and not trial.processes and trial.ready is None:
        return "another process took memory of the GPU while the workload started"
    if trial.processes:
        return f"the GPU was needed by {', '.join(trial.processes)}"
    if trial.failure is None and trial.newcomer is None and trial.stop is None:
        return f"the stressor was released: {trial.waiting or 'the reason is unknown'}"
    return None
