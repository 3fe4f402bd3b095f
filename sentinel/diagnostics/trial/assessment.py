"""Judges a trial: what is wrong with the workload, each with what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from sentinel.diagnostics.trial.measurement import Trial
from sentinel.protocol.stressor import MAX_QUANTUM_S, FailureKind, Progress
from sentinel.units import format_duration, format_size

#: How much the used memory may move although nobody took any. CUDA programs that start on other
#: GPUs of the host were seen to move it by 64 KiB for a moment.
_NOISE = 2**20

#: What to do about each kind of failure.
_REMEDIES = {
    FailureKind.WORKLOAD: "Mend the error, or catch it where it is none.",
    FailureKind.RETURNED: "Go on until ctx.pace() says False: `while ctx.pace(): ...`.",
    FailureKind.MALFORMED: "",  # the reason says what to write
    FailureKind.UNUSABLE: "",
    FailureKind.OUT_OF_MEMORY: "Work in ctx.chunks, and take all else that is needed before the "
    "second call of ctx.pace(); or leave more with --memory.",
    FailureKind.NOT_READY: "Call ctx.pace() twice, soon: what is before the second is preparation.",
    FailureKind.HANG: "Queue at most ctx.quantum seconds of work between two calls of ctx.pace().",
    FailureKind.STUCK: "Release the interpreter's lock in native code, or cut the work up.",
    FailureKind.GARBAGE: "Leave the stressor's own socket alone, and report once a round.",
    FailureKind.CRASH: "See what it wrote to standard error; what it calls may have a bug.",
    FailureKind.SPAWN: "Free processes, memory or file descriptors of this host.",
}

#: Whether others can be ruled out.
_UNLISTED = {True: "", False: " (here somebody may be there and not be listed)"}


class Verdict(StrEnum):
    """What a trial came to."""

    WELL = "well"
    MISBEHAVED = "misbehaved"
    UNUSABLE = "unusable"
    """The workload refused its options, or nothing could run here."""
    INCOMPLETE = "incomplete"
    """The GPU was needed by somebody else, or the trial was interrupted."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong: its kind for programs, what was seen, and what to do."""

    kind: str
    what: str
    do: str = ""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict, what it rests on, and why the trial is incomplete if it is."""

    verdict: Verdict
    problems: tuple[Problem, ...] = ()
    incomplete: str | None = None


def judge(trial: Trial) -> Judgement:
    """Return what a trial came to."""
    problems = tuple(_problems(trial))
    incomplete = why_incomplete(trial)
    verdict = Verdict.WELL if incomplete is None else Verdict.INCOMPLETE
    if problems:
        verdict = Verdict.MISBEHAVED
    unusable = {FailureKind.UNUSABLE, FailureKind.SPAWN}
    if problems and all(problem.kind in unusable for problem in problems):
        verdict = Verdict.UNUSABLE
    return Judgement(verdict=verdict, problems=problems, incomplete=incomplete)


def _too_long(progress: tuple[Progress, ...]) -> bool:
    """Return whether quanta are too long, and not one of them because the host was busy just then.

    That is so if they were in most of the times that its messages cover, or in two of them.
    """
    long = sum(said.max_quantum_s > MAX_QUANTUM_S for said in progress)
    return long >= 2 or 2 * long > len(progress)  # noqa: PLR2004 - as said


def grown(trial: Trial) -> int:
    """Return by how many bytes the used memory grew after Ready."""
    used = [reading.memory.used for reading in trial.readings if reading.memory is not None]
    return max(trial.newcomer or 0, max(used) - used[0] if used else 0)


def _problems(trial: Trial) -> Iterator[Problem]:
    """Yield everything that is wrong with the workload."""
    if trial.failure is not None:
        kind = FailureKind(trial.failure.kind)
        yield Problem(kind=kind.value, what=trial.failure.reason, do=_REMEDIES[kind])
    yield from _growth(trial)
    if _too_long(trial.progress):
        longest = max(said.max_quantum_s for said in trial.progress)
        yield Problem(
            kind="long_quantum",
            what=f"up to {format_duration(longest)} between two calls of ctx.pace(), where "
            f"{format_duration(MAX_QUANTUM_S)} is the most",
            do="Queue less: ctx.measure(work) says how long something takes, ctx.quantum how much "
            "there should be. Wait for nothing in the loop.",
        )
    if _ignored_the_stop(trial):
        after = f" within {format_duration(trial.stop.after)}" if trial.stop else ""
        yield Problem(
            kind="slow_stop",
            what=f"it did not end by itself{after} when it was asked to, and was killed",
            do="Return as soon as ctx.pace() says False, and call it every 50 ms or sooner.",
        )
    errors = sum(said.errors for said in trial.progress)
    if errors or trial.findings:
        yield Problem(
            kind="wrong_results",
            what=f"{errors} results were reported as wrong, with evidence of "
            f"{trial.findings} faults: this GPU, or the workload's check, cannot be trusted",
            do="Try a built-in workload such as gemm on this GPU, and this one on another GPU.",
        )


def _growth(trial: Trial) -> Iterator[Problem]:
    """Yield that the memory grew after Ready, if it did and nobody is known to have taken it."""
    do = (
        "Take all memory, and do each kind of work once, before the second call of ctx.pace(); "
        "libraries load kernels and take workspace when they are first used."
    )
    what = f"the used memory grew by {format_size(grown(trial))} after it was ready"
    if trial.newcomer is not None and not trial.people and trial.ready is not None:
        what += f", and nobody else is listed on the GPU{_UNLISTED[trial.all_listed]}: "
        yield Problem(kind="memory_growth", what=what + "sentinel yielded", do=do)
    elif trial.newcomer is None and grown(trial) > _NOISE:
        yield Problem(kind="memory_growth", what=what, do=do)


def _ignored_the_stop(trial: Trial) -> bool:
    """Return whether it was asked, in time and while it went round, and did not end by itself."""
    if trial.unkillable:
        return True
    asked = trial.ready is not None and trial.interrupted is None
    return asked and trial.stop is not None and trial.stop.killed


def why_incomplete(trial: Trial) -> str | None:
    """Return why not all was seen, if so, and the workload is not to blame."""
    if trial.interrupted is not None:
        return f"it was ended by {trial.interrupted}"
    if trial.gpu is None:
        return f"no GPU was idle: {trial.waiting or 'none was read in time'}"
    if trial.newcomer is not None and not trial.people and trial.ready is None:
        return "somebody took memory of the GPU while the workload started"
    if trial.people:
        return f"the GPU was needed by {', '.join(trial.people)}"
    if trial.failure is None and trial.newcomer is None and trial.stop is None:
        return f"the stressor was let go of: {trial.waiting or 'nobody said why'}"
    return None
