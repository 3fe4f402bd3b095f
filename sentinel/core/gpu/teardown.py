"""After a child's exit: is its memory back, was it a failure, and what follows. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentinel.config.model import Config
from sentinel.core.actions import Action, Event
from sentinel.core.events import gpu_event, who
from sentinel.core.gpu.ignored_processes import foreign_processes
from sentinel.core.gpu.leaks import CONTEXT_OVERHEAD, remains
from sentinel.core.gpu.memory_accounting import SLACK, unattributed_memory
from sentinel.core.identity import is_ours
from sentinel.core.observation import ChildExit
from sentinel.core.state import (
    Backoff,
    Busy,
    Evidence,
    Fatal,
    GpuState,
    Handover,
    Idle,
    StopCause,
    Stopped,
    Stopping,
    Unknown,
)
from sentinel.protocol.gpu import GpuProcess, Reading
from sentinel.protocol.stressor import ChildExitCode, Failed, FailureKind

#: Failures within an hour after which a GPU is given up, and the pauses before that, in seconds.
FAILURES_PER_HOUR = 10
HOUR = 3600.0
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 300.0
#: How long after an exit the memory may take to be seen back before nobody waits for it any more.
SETTLE_WITHIN = 5.0
SIGALRM = 14
#: What no retry can mend.
HOPELESS = frozenset({FailureKind.UNUSABLE, FailureKind.MALFORMED})


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one GPU's turn led to."""

    gpu_state: GpuState
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()


def settle(
    gpu_state: GpuState,
    stopping: Stopping,
    reading: Reading | None,
    now: float,
    config: Config,
    *,
    stalled: bool,
) -> Step:
    """End STOPPING once the memory is back, or once nobody can say any more."""
    exit_ = stopping.exit
    if exit_ is None:
        return Step(gpu_state=gpu_state)
    others = _after_exit(gpu_state, stopping, exit_, reading, config)
    back = others is not None and _memory_back(stopping, others, reading)
    late = now - exit_.at >= SETTLE_WITHIN or isinstance(gpu_state.occupancy, Unknown)
    untold = others is not None and (
        any(process.memory is None for process in others)
        or (stopping.evidence is not None and not gpu_state.identity.complete)
    )
    if not (back or late or untold):
        return Step(gpu_state=gpu_state)
    ended = _ended(gpu_state, stopping, exit_, reading, now, back=back, stalled=stalled)
    if back or others is None or reading is None:
        return ended
    gpu_state, events = remains(ended.gpu_state, stopping, others, reading, now)
    return replace(ended, gpu_state=gpu_state, events=(*ended.events, *events))


def _ended(
    gpu_state: GpuState,
    stopping: Stopping,
    exit_: ChildExit,
    reading: Reading | None,
    now: float,
    *,
    back: bool,
    stalled: bool,
) -> Step:
    """Return what follows the end of STOPPING: a hand-over, a failure or neither."""
    memory_back = reading.at if back and reading else None
    if stopping.cause is StopCause.YIELD and stopping.evidence is not None:
        return _handed_over(gpu_state, stopping, stopping.evidence, exit_, memory_back, now)
    failed = _why_failed(gpu_state, stopping, exit_, reading, stalled=stalled)
    if failed is not None:
        return _failure(gpu_state, stopping, failed, now)
    fields = {
        "cause": _soft_cause(stopping),
        "exit_code": exit_.code,
        "killed": stopping.kill_sent,
        "stop_s": max(0.0, exit_.at - stopping.since),
    }
    event = gpu_event("stressor.stopped", gpu_state, now, **fields)
    return Step(gpu_state=replace(gpu_state, stressor=Stopped()), events=(event,))


def _memory_back(
    stopping: Stopping, others: tuple[GpuProcess, ...], reading: Reading | None
) -> bool:
    """Return whether a reading stamped after the exit shows our memory given back.

    What those hold who are listed is taken off, newcomers' and guests', too; each may have a
    context whose own memory nobody names.
    """
    if reading is None or reading.memory is None:
        return False
    limit = stopping.unattributed + SLACK + CONTEXT_OVERHEAD * len(reading.processes or ())
    return all(one.memory is not None for one in others) and unattributed_memory(reading) <= limit


def _after_exit(
    gpu_state: GpuState,
    stopping: Stopping,
    exit_: ChildExit,
    reading: Reading | None,
    config: Config,
) -> tuple[GpuProcess, ...] | None:
    """Return who is there in a reading stamped after the exit that no longer lists our child.

    But for those who are let be.
    """
    if reading is None or reading.processes is None or reading.fault is not None:
        return None
    if min(reading.at, reading.processes_at) <= exit_.at:
        return None
    if any(is_ours(process, stopping.child) for process in reading.processes):
        return None
    return foreign_processes(gpu_state, reading, stopping.child, config)


def _handed_over(
    gpu_state: GpuState,
    stopping: Stopping,
    evidence: Evidence,
    exit_: ChildExit,
    memory_back: float | None,
    now: float,
) -> Step:
    """Say what the yield took."""
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
        processes=who(gpu_state),
    )
    # Where only memory told of the newcomer, the GPU looked idle all along: it is not, until now.
    occupancy = Idle(since=now) if isinstance(gpu_state.occupancy, Idle) else gpu_state.occupancy
    gpu_state = replace(
        gpu_state,
        stressor=Stopped(),
        handover=handover,
        occupancy=occupancy,
        yields=gpu_state.yields + 1,
    )
    return Step(gpu_state=gpu_state, events=(event,))


def _why_failed(
    gpu_state: GpuState,
    stopping: Stopping,
    exit_: ChildExit,
    reading: Reading | None,
    *,
    stalled: bool,
) -> Failed | None:
    """Return why this exit is a failure, or ``None``: we caused it, or others did."""
    match stopping.cause:
        case StopCause.YIELD | StopCause.UNKNOWN | StopCause.SHUTDOWN | StopCause.POLICY:
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
        beside = isinstance(gpu_state.occupancy, Busy) or _others_hold(stopping, reading)
        if stopping.failed.kind is FailureKind.OUT_OF_MEMORY and beside:
            return None
        return stopping.failed
    if exit_.code == -SIGALRM:
        reason = "its interpreter was stuck in native code for longer than a lease"
        return Failed(kind=FailureKind.STUCK, reason=reason)
    if exit_.code < 0:
        reason = f"ended by signal {-exit_.code}, which was not ours"
    else:
        reason = f"exited with code {exit_.code} and said nothing"
    return Failed(kind=FailureKind.CRASH, reason=reason)


def _soft_cause(stopping: Stopping) -> str:
    """Return what to call an exit that is no failure."""
    if stopping.cause is not StopCause.EXITED:
        return stopping.cause.value
    if stopping.clearing:
        return "a context was opened and closed"
    if stopping.failed is not None:
        return "out of memory beside a newcomer"
    return "lease ran out"


def _others_hold(stopping: Stopping, reading: Reading | None) -> bool:
    """Return whether somebody holds memory although our child is gone."""
    if reading is None or reading.memory is None:
        return False
    return reading.memory.used > stopping.baseline + SLACK


def _failure(gpu_state: GpuState, stopping: Stopping, failed: Failed, now: float) -> Step:
    """Count a failure and pause, or give up."""
    reason, kind = failed.reason, failed.kind.value
    failures = (*(at for at in gpu_state.failures if now - at < HOUR), now)
    streak = 1 if stopping.ran else gpu_state.streak + 1
    gpu_state = replace(gpu_state, failures=failures, streak=streak)
    permanently_failed = failed.kind in HOPELESS
    if permanently_failed or len(failures) >= FAILURES_PER_HOUR:
        if not permanently_failed:
            reason = f"{len(failures)} failures within an hour, the last: {reason}"
        event = gpu_event("stressor.fatal", gpu_state, now, reason=reason, kind=kind)
        return Step(
            gpu_state=replace(
                gpu_state, stressor=Fatal(reason=reason, unusable=permanently_failed)
            ),
            events=(event,),
        )
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (streak - 1))
    fields = {"reason": reason, "kind": kind, "pause_s": pause, "failures": len(failures)}
    event = gpu_event("stressor.failed", gpu_state, now, **fields)
    return Step(
        gpu_state=replace(gpu_state, stressor=Backoff(until=now + pause, reason=reason)),
        events=(event,),
    )
