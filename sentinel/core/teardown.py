"""Settle a stressor after its exit: is its memory free, did it fail, what follows. Pure.

Memory or load that remains and belongs to no process is leaked. Such load was seen on Blackwell
after a kill in mid-kernel, and disappeared when a context was opened and closed
(https://github.com/Datura-ai/lium-io/issues/1140). The same is tried for memory.
"""

from __future__ import annotations

import math
from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.attribution import CONTEXT_OVERHEAD_BYTES, SLACK_BYTES
from sentinel.core.gpu_state import (
    Backoff,
    Busy,
    Evidence,
    Fatal,
    GpuState,
    Handover,
    Idle,
    Leak,
    StopCause,
    Stopped,
    Stopping,
    Unknown,
)
from sentinel.core.newcomer import OWN_LOAD_S
from sentinel.core.observation import ChildExit
from sentinel.core.step import Event, Step, gpu_event, process_fields
from sentinel.errors import ChildExitCode
from sentinel.protocol.gpu import Reading
from sentinel.protocol.stressor import Failed, FailureKind
from sentinel.units import format_exit

#: A GPU without processes that is used by this share of the time or more has a leaked load.
LEAKED_LOAD = 0.95

#: A leak is reported once readings over so many seconds show it. The used memory and the process
#: list of a reading are not of one moment, and the memory of a newcomer appears some 120 ms before
#: it is listed (on an H200). The utilization is that of up to a second before.
CONFIRM_S = 1.0

#: A load counts as leaked only within so long after the end of a stressor, in seconds.
LOAD_WATCH_S = 10.0

#: How often a context is opened and closed to clear a leak, and the pause before the first time in
#: seconds, which is four times as long before each next.
MAX_CLEARINGS = 3
FIRST_PAUSE_S = 5.0

#: A GPU with so many failures within an hour is FATAL; before that, the pause after a failure
#: doubles from the minimum to the maximum, in seconds.
MAX_FAILURES_PER_HOUR = 10
HOUR_S = 3600.0
MIN_PAUSE_S = 1.0
MAX_PAUSE_S = 300.0
#: After so many seconds of RUNNING the pauses begin again at the minimum.
FORGIVE_AFTER_S = 60.0
#: More than reach the maximum, and few enough for a float.
MAX_DOUBLINGS = 16
#: STOPPING ends so long after the exit even if the memory is not free, in seconds.
SETTLE_TIMEOUT_S = 5.0
SIGKILL, SIGALRM = 9, 14
#: Failures that no retry can fix.
PERMANENT_FAILURES = frozenset({FailureKind.UNUSABLE, FailureKind.MALFORMED})
#: Causes that are no failure, but are followed by the same growing pause, with its reason.
_NOT_READ = {
    StopCause.UNKNOWN: "the GPU could not be read",
    StopCause.UNWATCHED: "the GPU was not watched",
}


def detect_leak(gpu_state: GpuState, reading: Reading, now: float) -> GpuState:
    """Record the memory that no process holds after the end of a stressor.

    Args:
        gpu_state: The GPU without the stressor, with the attribution of ``reading``.
        reading: A reading stamped after the stressor's exit, without it.
        now: The time of this tick.
    """
    before = gpu_state.launch.unattributed
    left = gpu_state.attribution.unattributed - before
    if not _is_measurable(gpu_state, reading) or left <= _allowance(reading):
        return gpu_state
    leak = replace(gpu_state.leak, unattributed=before, since=now, reported=False)
    return replace(gpu_state, leak=leak)


def update_leak(gpu_state: GpuState, reading: Reading | None, now: float) -> Step[GpuState]:
    """Report leaked memory once it is confirmed, detect a leaked load, and forget what is gone.

    Memory is reported where every process is listed; elsewhere an unlisted process may hold it.
    """
    if reading is None or reading.memory is None or not isinstance(gpu_state.stressor, Stopped):
        return Step(gpu_state)
    leak, events = gpu_state.leak, list[Event]()
    if leak.unattributed is not None:
        left = gpu_state.attribution.unattributed - leak.unattributed
        if left <= _allowance(reading):
            leak = replace(leak, unattributed=None)
        elif (
            not leak.reported
            and reading.at - leak.since >= CONFIRM_S
            and gpu_state.identity.complete
            and _is_measurable(gpu_state, reading)
        ):
            leak = replace(leak, reported=True)
            events.append(
                gpu_event("gpu.memory_leaked", gpu_state, now, bytes=left, utilization=None)
            )
    leak, found = _follow_load(gpu_state, leak, reading)
    if found:
        share = reading.utilization
        events.append(gpu_event("gpu.memory_leaked", gpu_state, now, bytes=0, utilization=share))
    if leak.unattributed is None and not leak.load and leak.load_since is None:
        leak = Leak()
    gpu_state = gpu_state if leak == gpu_state.leak else replace(gpu_state, leak=leak)
    return Step(gpu_state, events=tuple(events))


def _follow_load(gpu_state: GpuState, leak: Leak, reading: Reading) -> tuple[Leak, bool]:
    """Detect a leaked load once it is confirmed; return whether it was detected just now."""
    share = reading.utilization
    if share is None:
        return leak, False
    if leak.load:
        return (leak if share >= LEAKED_LOAD else replace(leak, load=False, load_since=None)), False
    if not (share >= LEAKED_LOAD and _is_leaked_load(gpu_state, reading)):
        return replace(leak, load_since=None), False
    if leak.load_since is None:
        return replace(leak, load_since=reading.at), False
    if reading.at - leak.load_since < CONFIRM_S:
        return leak, False
    return replace(leak, load=True), True


def needs_utilization(gpu_state: GpuState, now: float) -> bool:
    """Check whether the utilization must be read to find a leaked load or its end."""
    recent = now - gpu_state.ended <= LOAD_WATCH_S
    return isinstance(gpu_state.stressor, Stopped) and (recent or gpu_state.leak.load)


def clearing_due(gpu_state: GpuState, reading: Reading | None, config: Config) -> float | None:
    """Compute when to open and close a context to clear a leak; None for never.

    Only while no process is listed, and a limited number of times.
    """
    if not gpu_state.leaks or not isinstance(gpu_state.stressor, Stopped) or config.dry_run:
        return None
    if reading is None or reading.processes != () or reading.omitted_processes:
        return None
    if gpu_state.leak.clearings >= MAX_CLEARINGS:
        return None
    return gpu_state.ended + FIRST_PAUSE_S * 4.0**gpu_state.leak.clearings


def _is_measurable(gpu_state: GpuState, reading: Reading) -> bool:
    """Check that the memory of every process is known."""
    unknown = any(process.memory is None for process in gpu_state.attribution.foreign)
    return not unknown and not reading.omitted_processes


def _is_leaked_load(gpu_state: GpuState, reading: Reading) -> bool:
    """Check that no process can cause a load: all are listed, and the stressor's load is over."""
    after = reading.at - gpu_state.ended
    return (
        gpu_state.identity.complete
        and reading.processes == ()
        and not reading.omitted_processes
        and OWN_LOAD_S <= after <= LOAD_WATCH_S
    )


def _allowance(reading: Reading) -> int:
    """Compute how much unattributed memory the listed processes' contexts explain, in bytes."""
    return SLACK_BYTES + CONTEXT_OVERHEAD_BYTES * len(reading.processes or ())


def settle(
    gpu_state: GpuState, stopping: Stopping, reading: Reading | None, now: float, *, stalled: bool
) -> Step[GpuState]:
    """End STOPPING once the memory is free, or once that cannot be decided any more."""
    exit_ = stopping.exit
    if exit_ is None:
        return Step(gpu_state)
    gone = _shows_exit(gpu_state, exit_, reading)
    back = gone and _is_memory_back(gpu_state, reading)
    late = now >= exit_.at + SETTLE_TIMEOUT_S or isinstance(gpu_state.occupancy, Unknown)
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
    return ended._replace(state=detect_leak(ended.state, reading, now))


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
        "cause": _stop_cause(gpu_state, stopping),
        "exit_code": exit_.code,
        "killed": stopping.kill_sent,
        "stop_s": max(0.0, exit_.at - stopping.since),
    }
    event = gpu_event("stressor.stopped", gpu_state, now, **fields)
    return Step(replace(gpu_state, stressor=after), events=(event,), due=due)


def _is_memory_back(gpu_state: GpuState, reading: Reading | None) -> bool:
    """Check whether a reading after the exit shows the stressor's memory free.

    The memory of listed processes does not count; the context of each may add unattributed memory.
    """
    if reading is None or reading.memory is None or reading.omitted_processes:
        return False
    if any(process.memory is None for process in gpu_state.attribution.foreign):
        return False
    contexts = CONTEXT_OVERHEAD_BYTES * len(reading.processes or ())
    limit = gpu_state.launch.unattributed + SLACK_BYTES + contexts
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
        case StopCause.YIELD | StopCause.UNKNOWN | StopCause.SHUTDOWN | StopCause.POLICY:
            return None
        # A stressor that dies by itself holds up the driver, so that its GPU is not read meanwhile.
        case StopCause.UNWATCHED if stopping.failed is None and exit_.code == -SIGKILL:
            return None
        case StopCause.START_TIMEOUT | StopCause.HANG | StopCause.GARBAGE:
            cause = Failed(kind=FailureKind.WORKLOAD, reason=stopping.cause.value)
            return stopping.failed or cause
    lease_ran_out = exit_.code == ChildExitCode.LEASE_RAN_OUT or (
        exit_.code == -SIGALRM and stalled
    )
    if gpu_state.launch.clearing or lease_ran_out:
        return None
    if stopping.failed is not None:
        shared = isinstance(gpu_state.occupancy, Busy) or _is_memory_used(gpu_state, reading)
        if stopping.failed.kind is FailureKind.OUT_OF_MEMORY and shared:
            return None
        return stopping.failed
    if exit_.code == -SIGALRM:
        reason = "its interpreter was stuck in native code for longer than a lease"
        return Failed(kind=FailureKind.STUCK, reason=reason)
    silent = " without a message" if exit_.code >= 0 else ""
    return Failed(kind=FailureKind.CRASH, reason=f"{format_exit(exit_.code)}{silent}")


def _stop_cause(gpu_state: GpuState, stopping: Stopping) -> str:
    """Name the cause of an exit that is no failure."""
    if stopping.cause is not StopCause.EXITED:
        return stopping.cause.value
    if gpu_state.launch.clearing:
        return "a context was opened and closed"
    if stopping.failed is not None:
        return "out of memory beside a newcomer"
    return "lease ran out"


def _is_memory_used(gpu_state: GpuState, reading: Reading | None) -> bool:
    """Check whether more memory is used than before the stressor was started."""
    if reading is None or reading.memory is None:
        return False
    return reading.memory.used > gpu_state.launch.baseline + SLACK_BYTES


def _failed(gpu_state: GpuState, stopping: Stopping, failed: Failed, now: float) -> Step[GpuState]:
    """Count a failure; pause before the next start, or mark the GPU FATAL.

    What the host refuses is no fault of the workload, however often it does.
    """
    reason, kind = failed.reason, failed.kind.value
    failures = tuple(at for at in gpu_state.failures if now - at < HOUR_S)
    failures += () if failed.kind is FailureKind.SPAWN else (now,)
    streak, pause = _next_pause(gpu_state, stopping)
    gpu_state = replace(gpu_state, failures=failures, last_failure=reason, streak=streak)
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
    streak = 1 if _ran_long(stopping) else gpu_state.streak + 1
    return streak, pause_of(replace(gpu_state, streak=streak))


def _ran_long(stopping: Stopping) -> bool:
    """Check whether the child ran long enough to reset the back-off."""
    running = stopping.running
    return running is not None and stopping.since - running.since >= FORGIVE_AFTER_S


def pause_of(gpu_state: GpuState) -> float:
    """Compute the pause after the last of a GPU's failures in a row, in seconds."""
    doublings = min(max(1, gpu_state.streak) - 1, MAX_DOUBLINGS)
    return min(MAX_PAUSE_S, MIN_PAUSE_S * 2.0**doublings)
