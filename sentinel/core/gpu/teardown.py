"""Settle a stressor after its exit: is its memory free, did it fail, what follows. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from sentinel.core.events import gpu_event, process_fields
from sentinel.core.gpu import leaks
from sentinel.core.gpu.attribution import CONTEXT_OVERHEAD_BYTES, SLACK_BYTES
from sentinel.core.gpu_state import Busy, GpuState, Idle, Unknown
from sentinel.core.observation import ChildExit
from sentinel.core.step import Step
from sentinel.core.stressor_state import (
    Backoff,
    Evidence,
    Fatal,
    Handover,
    StopCause,
    Stopped,
    Stopping,
)
from sentinel.errors import ChildExitCode
from sentinel.protocol.gpu import Reading
from sentinel.protocol.stressor import Failed, FailureKind

#: A GPU with so many failures within an hour is FATAL; before that, the pause after a failure
#: doubles from the minimum to the maximum, in seconds.
MAX_FAILURES_PER_HOUR = 10
HOUR_S = 3600.0
MIN_PAUSE_S = 1.0
MAX_PAUSE_S = 300.0
#: More than reach the maximum, and few enough for a float.
MAX_DOUBLINGS = 16
#: STOPPING ends so long after the exit even if the memory is not free, in seconds.
SETTLE_TIMEOUT_S = 5.0
SIGALRM = 14
#: Failures that no retry can fix.
PERMANENT_FAILURES = frozenset({FailureKind.UNUSABLE, FailureKind.MALFORMED})
#: Causes that are no failure, but are followed by the same growing pause, with its reason.
_NOT_READ = {
    StopCause.UNKNOWN: "the GPU could not be read",
    StopCause.UNWATCHED: "the GPU was not watched",
}


def settle(
    gpu_state: GpuState, stopping: Stopping, reading: Reading | None, now: float, *, stalled: bool
) -> Step[GpuState]:
    """End STOPPING once the memory is free, or once that cannot be decided any more."""
    exit_ = stopping.exit
    if exit_ is None:
        return Step(gpu_state)
    gone = _shows_exit(gpu_state, exit_, reading)
    back = gone and _is_memory_back(gpu_state, stopping, reading)
    late = now - exit_.at >= SETTLE_TIMEOUT_S or isinstance(gpu_state.occupancy, Unknown)
    foreign = gpu_state.attribution.foreign
    unmeasurable = gone and (
        any(process.memory is None for process in foreign)
        or (reading is not None and reading.omitted_processes > 0)
        or (stopping.evidence is not None and not gpu_state.identity.complete)
    )
    if not (back or late or unmeasurable):
        return Step(gpu_state, due=exit_.at + SETTLE_TIMEOUT_S)
    memory_back = reading.at if back and reading else None
    ended = _ended(gpu_state, stopping, exit_, reading, memory_back, now, stalled=stalled)
    if back or not gone or reading is None:
        return ended
    return ended._replace(state=leaks.detect(ended.state, stopping, reading, now))


def _ended(
    gpu_state: GpuState,
    stopping: Stopping,
    exit_: ChildExit,
    reading: Reading | None,
    memory_back: float | None,
    now: float,
    *,
    stalled: bool,
) -> Step[GpuState]:
    """End STOPPING as a hand-over, a failure or a plain stop."""
    if stopping.cause is StopCause.YIELD and stopping.evidence is not None:
        return _handed_over(gpu_state, stopping, stopping.evidence, exit_, memory_back, now)
    failed = _failure_of(gpu_state, stopping, exit_, reading, stalled=stalled)
    if failed is not None:
        return _failed(gpu_state, stopping, failed, now)
    after: Stopped | Backoff = Stopped()
    due = math.inf
    if stopping.cause in _NOT_READ:
        # A host that is too slow to read a GPU would lose and restart its stressor for ever.
        streak, pause = _next_pause(gpu_state, stopping)
        due = now + pause
        after = Backoff(until=due, reason=_NOT_READ[stopping.cause])
        gpu_state = replace(gpu_state, streak=streak)
    fields = {
        "cause": _stop_cause(stopping),
        "exit_code": exit_.code,
        "killed": stopping.kill_sent,
        "stop_s": max(0.0, exit_.at - stopping.since),
    }
    event = gpu_event("stressor.stopped", gpu_state, now, **fields)
    return Step(replace(gpu_state, stressor=after), events=(event,), due=due)


def _is_memory_back(gpu_state: GpuState, stopping: Stopping, reading: Reading | None) -> bool:
    """Check whether a reading after the exit shows the stressor's memory free.

    The memory of listed processes does not count; the context of each may add unattributed memory.
    """
    if reading is None or reading.memory is None or reading.omitted_processes:
        return False
    if any(process.memory is None for process in gpu_state.attribution.foreign):
        return False
    contexts = CONTEXT_OVERHEAD_BYTES * len(reading.processes or ())
    limit = stopping.unattributed + SLACK_BYTES + contexts
    return gpu_state.attribution.unattributed <= limit


def _shows_exit(gpu_state: GpuState, exit_: ChildExit, reading: Reading | None) -> bool:
    """Check whether a reading is stamped after the exit and does not list the child any more."""
    if reading is None or reading.processes is None or reading.fault is not None:
        return False
    return min(reading.at, reading.processes_at) > exit_.at and not gpu_state.attribution.own


def _handed_over(
    gpu_state: GpuState,
    stopping: Stopping,
    evidence: Evidence,
    exit_: ChildExit,
    memory_back: float | None,
    now: float,
) -> Step[GpuState]:
    """End a yield and report its times."""
    killed_at = stopping.killed_at
    if killed_at is None and stopping.kill_sent:
        killed_at = stopping.kill_at
    handover = Handover(
        evidence=evidence,
        kill=None if killed_at is None else killed_at - evidence.at,
        exit=exit_.at - evidence.at,
        memory_back=None if memory_back is None else memory_back - evidence.at,
    )
    event = gpu_event(
        "gpu.handed_over",
        gpu_state,
        now,
        evidence=evidence.kind.value,
        evidence_at=evidence.at,
        read_s=evidence.took,
        killed_at=killed_at,
        kill_s=handover.kill,
        exit_s=handover.exit,
        memory_back_s=handover.memory_back,
        processes=process_fields(gpu_state),
    )
    # A GPU whose newcomer only memory showed has looked idle all along; it is idle from now on.
    occupancy = Idle(since=now) if isinstance(gpu_state.occupancy, Idle) else gpu_state.occupancy
    gpu_state = replace(
        gpu_state,
        stressor=Stopped(),
        handover=handover,
        occupancy=occupancy,
        yields=gpu_state.yields + 1,
    )
    return Step(gpu_state, events=(event,))


def _failure_of(
    gpu_state: GpuState,
    stopping: Stopping,
    exit_: ChildExit,
    reading: Reading | None,
    *,
    stalled: bool,
) -> Failed | None:
    """Return the failure behind an exit; None if Sentinel or a newcomer caused the exit."""
    match stopping.cause:
        case (
            StopCause.YIELD
            | StopCause.UNKNOWN
            | StopCause.UNWATCHED
            | StopCause.SHUTDOWN
            | StopCause.POLICY
        ):
            return None
        case StopCause.START_TIMEOUT | StopCause.HANG | StopCause.GARBAGE:
            cause = Failed(kind=FailureKind.WORKLOAD, reason=stopping.cause.value)
            return stopping.failed or cause
    lease_ran_out = exit_.code == ChildExitCode.LEASE_RAN_OUT or (
        exit_.code == -SIGALRM and stalled
    )
    if stopping.clearing or lease_ran_out:
        return None
    if stopping.failed is not None:
        shared = isinstance(gpu_state.occupancy, Busy) or _is_memory_used(stopping, reading)
        if stopping.failed.kind is FailureKind.OUT_OF_MEMORY and shared:
            return None
        return stopping.failed
    if exit_.code == -SIGALRM:
        reason = "its interpreter was stuck in native code for longer than a lease"
        return Failed(kind=FailureKind.STUCK, reason=reason)
    if exit_.code < 0:
        reason = f"ended by signal {-exit_.code}, which sentinel did not send"
    else:
        reason = f"exited with code {exit_.code} without a message"
    return Failed(kind=FailureKind.CRASH, reason=reason)


def _stop_cause(stopping: Stopping) -> str:
    """Name the cause of an exit that is no failure."""
    if stopping.cause is not StopCause.EXITED:
        return stopping.cause.value
    if stopping.clearing:
        return "a context was opened and closed"
    if stopping.failed is not None:
        return "out of memory beside a newcomer"
    return "lease ran out"


def _is_memory_used(stopping: Stopping, reading: Reading | None) -> bool:
    """Check whether more memory is used than before the stressor was started."""
    if reading is None or reading.memory is None:
        return False
    return reading.memory.used > stopping.baseline + SLACK_BYTES


def _failed(gpu_state: GpuState, stopping: Stopping, failed: Failed, now: float) -> Step[GpuState]:
    """Count a failure; pause before the next start, or mark the GPU FATAL."""
    reason, kind = failed.reason, failed.kind.value
    failures = (*(at for at in gpu_state.failures if now - at < HOUR_S), now)
    streak, pause = _next_pause(gpu_state, stopping)
    gpu_state = replace(gpu_state, failures=failures, streak=streak)
    permanent = failed.kind in PERMANENT_FAILURES
    if permanent or len(failures) >= MAX_FAILURES_PER_HOUR:
        if not permanent:
            reason = f"{len(failures)} failures within an hour, the last: {reason}"
        in_plan = gpu_state.burnin is not None and gpu_state.burnin.ended is None
        until = "the next phase" if in_plan else "a restart, resume or new settings"
        event = gpu_event("stressor.fatal", gpu_state, now, reason=reason, kind=kind, until=until)
        fatal = Fatal(reason=reason, unusable=permanent)
        return Step(replace(gpu_state, stressor=fatal), events=(event,))
    fields = {"reason": reason, "kind": kind, "pause_s": pause, "failures": len(failures)}
    event = gpu_event("stressor.failed", gpu_state, now, **fields)
    backoff = Backoff(until=now + pause, reason=reason)
    return Step(replace(gpu_state, stressor=backoff), events=(event,), due=backoff.until)


def _next_pause(gpu_state: GpuState, stopping: Stopping) -> tuple[int, float]:
    """Count a stop that a pause follows; return the new count and the pause, in seconds."""
    streak = 1 if stopping.ran else gpu_state.streak + 1
    return streak, pause_of(replace(gpu_state, streak=streak))


def pause_of(gpu_state: GpuState) -> float:
    """Compute the pause after the last of a GPU's failures in a row, in seconds."""
    doublings = min(max(1, gpu_state.streak) - 1, MAX_DOUBLINGS)
    return min(MAX_PAUSE_S, MIN_PAUSE_S * 2.0**doublings)
