"""Advance the state machine of one stressor: apply messages and exits, then take one step. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.actions import Event, Kill, RequestStop
from sentinel.core.events import gpu_event, process_fields
from sentinel.core.gpu import slow_start, verified_work
from sentinel.core.gpu.memory_accounting import SLACK_BYTES
from sentinel.core.gpu.newcomer import LIST_WAIT_S, plausible
from sentinel.core.gpu.teardown import SETTLE_TIMEOUT_S, Step, settle
from sentinel.core.gpu_state import GpuState, Idle, Unknown
from sentinel.core.observation import ChildExit, ChildFacts
from sentinel.core.stressor_state import (
    Backoff,
    Evidence,
    EvidenceKind,
    Running,
    Starting,
    StopCause,
    Stopped,
    Stopping,
)
from sentinel.protocol.gpu import Reading
from sentinel.protocol.stressor import (
    ChildMessage,
    CreatingContext,
    Failed,
    FailureKind,
    MemoryContention,
    Note,
    Preparing,
    Progress,
    Ready,
)

#: After so many seconds of RUNNING the back-off begins again at its minimum.
FORGIVE_AFTER_S = 60.0
#: A child that lives so many seconds after SIGKILL is reported; teardown took 0.3 s on an H200.
UNKILLABLE_AFTER_S = 10.0
_NO_PACE = "the workload does not come back to ctx.pace(), which it must within 50 ms"

#: A workload's note is cut to this many characters; a plugin may have written it.
MAX_NOTE_LENGTH = 200


def start(gpu_state: GpuState, reading: Reading, now: float, *, clearing: bool = False) -> GpuState:
    """Move a GPU to STARTING with a child of the next generation."""
    generation = gpu_state.generation + 1
    stressor = Starting(
        generation=generation,
        since=now,
        baseline=reading.memory.used if reading.memory else 0,
        unattributed=gpu_state.attribution.unattributed,
        before=tuple(process.pid for process in reading.processes or ()),
        clearing=clearing,
    )
    return replace(gpu_state, generation=generation, stressor=stressor, started=now)


# --- messages and exits ----------------------------------------------------------------------


def fold(gpu_state: GpuState, facts: ChildFacts, now: float) -> Step:
    """Apply the new facts about the child: each message, and its exit last."""
    if facts.generation != gpu_state.generation:
        return Step(gpu_state=gpu_state)
    events: list[Event] = []
    if facts.child is not None and isinstance(gpu_state.stressor, Starting):
        gpu_state = replace(gpu_state, stressor=replace(gpu_state.stressor, child=facts.child))
    for message in facts.messages:
        gpu_state, event = _apply(gpu_state, message, now)
        events += [event] if event else []
    if facts.garbage is not None and isinstance(gpu_state.stressor, Starting | Running):
        failed = Failed(kind=FailureKind.GARBAGE, reason=facts.garbage)
        gpu_state = _to_stopping(gpu_state, StopCause.GARBAGE, now, kill_at=now, failed=failed)
    match gpu_state.stressor:
        case Stopping(killed_at=None) as stopping if facts.killed_at is not None:
            stopping = replace(stopping, killed_at=facts.killed_at)
            gpu_state = replace(gpu_state, stressor=stopping)
    if facts.exit is not None:
        gpu_state, event = _exited(gpu_state, facts.exit, now)
        events += [event] if event else []
    return Step(gpu_state=gpu_state, events=tuple(events))


def _exited(gpu_state: GpuState, exit_: ChildExit, now: float) -> tuple[GpuState, Event | None]:
    """Apply the exit of the child; one that saw memory contention has yielded by itself."""
    event = None
    match gpu_state.stressor:
        case (
            Starting(contention=MemoryContention() as seen)
            | Running(contention=MemoryContention() as seen)
        ):
            gpu_state, event = _yielded(gpu_state, replace(seen, at=seen.at or exit_.at), now)
    gpu_state = _to_stopping(gpu_state, StopCause.EXITED, now, kill_at=now)
    if isinstance(gpu_state.stressor, Stopping):
        gpu_state = replace(gpu_state, stressor=replace(gpu_state.stressor, exit=exit_))
    return gpu_state, event


def _apply(gpu_state: GpuState, message: ChildMessage, now: float) -> tuple[GpuState, Event | None]:
    """Apply one message of the child; ignore it if it does not fit the state."""
    match message, gpu_state.stressor:
        case CreatingContext() | Preparing(), Starting() as starting:
            return replace(gpu_state, stressor=slow_start.advance(starting, message, now)), None
        case MemoryContention(), _:
            return _contend(gpu_state, message, now)
        case Ready(), Starting() as starting:
            running = Running(
                generation=starting.generation,
                since=now,
                baseline=starting.baseline,
                unattributed=starting.unattributed,
                before=starting.before,
                child=starting.child,
                ready=message,
                last_progress=now,
            )
            fields = {**vars(message), "start_s": now - starting.since}
            event = gpu_event("stressor.ready", gpu_state, now, **fields)
            return replace(gpu_state, stressor=running), event
        case Note(text=text), Running() as running:
            running = replace(running, note=text[:MAX_NOTE_LENGTH])
            return replace(gpu_state, stressor=running), None
        case Progress(), Running() | Stopping() as stressor:
            if isinstance(stressor, Running):
                stressor = replace(stressor, progress=message, last_progress=now)
            gpu_state = verified_work.count(gpu_state, message, now)
            return replace(gpu_state, stressor=stressor), _mismatch(gpu_state, message, now)
        case Failed(), Starting() | Running():
            later = now + 1.0
            stopping = _to_stopping(gpu_state, StopCause.EXITED, now, kill_at=later, failed=message)
            return stopping, None
        case Failed(), Stopping() as stopping:
            return replace(gpu_state, stressor=replace(stopping, failed=message)), None
        case _:
            return gpu_state, None


def _contend(
    gpu_state: GpuState, message: MemoryContention, now: float
) -> tuple[GpuState, Event | None]:
    """Apply what the child saw of a newcomer; one that killed itself has yielded."""
    message = plausible(message, gpu_state.started, now)
    # After Ready the child counts from its limit, and that has the slack on top.
    seen = replace(message, grown=message.grown + SLACK_BYTES)
    match gpu_state.stressor:
        case Starting() as starting:
            return replace(gpu_state, stressor=replace(starting, contention=message)), None
        case Running() as running if seen.killed_at is None:
            return replace(gpu_state, stressor=replace(running, contention=seen)), None
        case Running() | Stopping(evidence=None, kill_sent=False):
            return _yielded(gpu_state, seen, now)
        case _:
            return gpu_state, None


def _yielded(gpu_state: GpuState, seen: MemoryContention, now: float) -> tuple[GpuState, Event]:
    """Record that the child has yielded by itself; it is killed all the same, in case it lied."""
    evidence = Evidence(
        kind=EvidenceKind.MEMORY, at=seen.at or now, took=seen.took, grown=seen.grown
    )
    event = _yielding(gpu_state, evidence, now)
    gpu_state = _to_stopping(gpu_state, StopCause.YIELD, now, kill_at=now)
    stopping = gpu_state.stressor
    if isinstance(stopping, Stopping):
        stopping = replace(
            stopping,
            cause=StopCause.YIELD,
            evidence=evidence,
            killed_at=seen.killed_at,
        )
    return replace(gpu_state, stressor=stopping), event


def _mismatch(gpu_state: GpuState, progress: Progress, now: float) -> Event | None:
    """Report wrong results, if there are any; also from a child that is stopping."""
    fields = {"errors": progress.errors, "checks": progress.checks}
    return gpu_event("stressor.mismatch", gpu_state, now, **fields) if progress.errors else None


# --- one step --------------------------------------------------------------------------------


def step(
    gpu_state: GpuState,
    reading: Reading | None,
    evidence: Evidence | None,
    now: float,
    config: Config,
    *,
    unwatched: float | None,
    stalled: bool,
) -> Step:
    """Take at most one step.

    Args:
        gpu_state: The GPU with the facts applied and its current occupancy.
        reading: The latest reading of this GPU.
        evidence: The evidence of a newcomer, or None.
        now: The time of this tick.
        config: The configuration of this GPU.
        unwatched: For how long the GPU has not been watched, in seconds, if that is too long.
        stalled: Whether the supervisor, and maybe the host, did not run for a while just now.
    """
    match gpu_state.stressor:
        case Starting() | Running():
            return _supervise(gpu_state, evidence, now, config, unwatched, stalled)
        case Stopping(exit=None) as stopping:
            return _await_exit(gpu_state, stopping, evidence, now)
        case Stopping() as stopping:
            return settle(gpu_state, stopping, reading, now, stalled=stalled)
        case Backoff(until=until) if now >= until:
            return Step(gpu_state=replace(gpu_state, stressor=Stopped()))
        case _:
            return Step(gpu_state=gpu_state)


def stop(gpu_state: GpuState, cause: StopCause, now: float, kill_at: float) -> Step:
    """Request a living child to stop, to be killed at ``kill_at``; kill it if that is now."""
    if now >= kill_at:
        return _kill(gpu_state, cause, now)
    return _request_stop(gpu_state, cause, now, kill_at)


def shut_down(gpu_state: GpuState, now: float, kill_at: float) -> Step:
    """Stop a living child for a shutdown; bring the kill of one that is stopping forward."""
    match gpu_state.stressor:
        case Starting() | Running():
            return stop(gpu_state, StopCause.SHUTDOWN, now, kill_at)
        case Stopping(exit=None, kill_sent=False) as stopping:
            stopping = replace(stopping, kill_at=min(kill_at, stopping.kill_at))
            return _await_exit(replace(gpu_state, stressor=stopping), stopping, None, now)
        case _:
            return Step(gpu_state=gpu_state)


def _supervise(
    gpu_state: GpuState,
    evidence: Evidence | None,
    now: float,
    config: Config,
    unwatched: float | None,
    stalled: bool,  # noqa: FBT001 - passed on
) -> Step:
    """Yield to a newcomer; end a child on an unknown or unwatched GPU or past its time."""
    if isinstance(gpu_state.occupancy, Unknown):
        return _kill(gpu_state, StopCause.UNKNOWN, now)
    if evidence is not None:
        return _yield(gpu_state, evidence, now, config)
    if unwatched is not None:
        event = gpu_event("gpu.unwatched", gpu_state, now, unwatched_s=unwatched)
        return replace(_kill(gpu_state, StopCause.UNWATCHED, now), events=(event,))
    match gpu_state.stressor:
        case Starting(since=since) as starting if now - since >= config.start_timeout:
            reason = (
                f"not ready within {config.start_timeout:g} s: {slow_start.waits_for(starting)}"
            )
            failed = Failed(kind=FailureKind.NOT_READY, reason=reason)
            return _kill(gpu_state, StopCause.START_TIMEOUT, now, failed)
        case Running(last_progress=last) if now - last >= config.hang_after and not stalled:
            reason = f"no progress for {config.hang_after:g} s: {_NO_PACE}"
            failed = Failed(kind=FailureKind.HANG, reason=reason)
            return _kill(gpu_state, StopCause.HANG, now, failed)
        case _:
            return Step(gpu_state=gpu_state)


def _yield(gpu_state: GpuState, evidence: Evidence, now: float, config: Config) -> Step:
    """Kill the child in this tick, or request it to stop first (yield.how = ask)."""
    events = (_yielding(gpu_state, evidence, now),)
    if config.yield_how == "kill":
        step = _kill(gpu_state, StopCause.YIELD, now, evidence=evidence)
    else:
        kill_at = now + config.yield_grace
        step = _request_stop(gpu_state, StopCause.YIELD, now, kill_at, evidence)
    return replace(step, events=events)


def _yielding(gpu_state: GpuState, evidence: Evidence, now: float) -> Event:
    """Build the event that reports the evidence and the state of the stressor."""
    return gpu_event(
        "gpu.yielding",
        gpu_state,
        now,
        evidence=evidence.kind.value,
        evidence_at=evidence.at,
        read_s=evidence.took,
        grown=evidence.grown,
        processes=process_fields(gpu_state),
        stressor=type(gpu_state.stressor).__name__.upper(),
    )


def _request_stop(
    gpu_state: GpuState,
    cause: StopCause,
    now: float,
    kill_at: float,
    evidence: Evidence | None = None,
) -> Step:
    """Request the child to stop, and schedule its kill."""
    request = RequestStop(uuid=gpu_state.gpu.uuid, generation=gpu_state.generation)
    gpu_state = _to_stopping(gpu_state, cause, now, kill_at=kill_at, evidence=evidence)
    return Step(gpu_state=gpu_state, actions=(request,))


def _kill(
    gpu_state: GpuState,
    cause: StopCause,
    now: float,
    failed: Failed | None = None,
    evidence: Evidence | None = None,
) -> Step:
    """Kill the child in this tick."""
    kill = Kill(uuid=gpu_state.gpu.uuid, generation=gpu_state.generation)
    gpu_state = _to_stopping(
        gpu_state, cause, now, kill_at=now, failed=failed, evidence=evidence, kill_sent=True
    )
    return Step(gpu_state=gpu_state, actions=(kill,))


def _to_stopping(
    gpu_state: GpuState,
    cause: StopCause,
    now: float,
    *,
    kill_at: float,
    failed: Failed | None = None,
    evidence: Evidence | None = None,
    kill_sent: bool = False,
) -> GpuState:
    """Move a living child to STOPPING."""
    live = gpu_state.stressor
    if not isinstance(live, Starting | Running):
        return gpu_state
    stopping = Stopping(
        generation=live.generation,
        since=now,
        cause=cause,
        baseline=live.baseline,
        unattributed=live.unattributed,
        child=live.child,
        kill_at=kill_at,
        ran=isinstance(live, Running) and now - live.since >= FORGIVE_AFTER_S,
        clearing=isinstance(live, Starting) and live.clearing,
        evidence=evidence,
        kill_sent=kill_sent,
        failed=failed,
    )
    return replace(gpu_state, stressor=stopping)


def _await_exit(
    gpu_state: GpuState, stopping: Stopping, evidence: Evidence | None, now: float
) -> Step:
    """Kill a stopping child when its time is over or a newcomer appears; report a survivor.

    After a yield request the full grace applies; any other stop is cut short by a newcomer.
    """
    if not stopping.kill_sent:
        if evidence is None and now < stopping.kill_at:
            return Step(gpu_state=gpu_state)
        if evidence is not None:
            stopping = replace(stopping, cause=StopCause.YIELD, evidence=evidence)
        stopping = replace(stopping, kill_sent=True, kill_at=now)
        kill = Kill(uuid=gpu_state.gpu.uuid, generation=gpu_state.generation)
        events = (_yielding(gpu_state, evidence, now),) if evidence else ()
        return Step(gpu_state=replace(gpu_state, stressor=stopping), actions=(kill,), events=events)
    if not stopping.reported and now - stopping.kill_at >= UNKILLABLE_AFTER_S:
        pid = stopping.child.pid if stopping.child else None
        since = now - stopping.kill_at
        event = gpu_event("stressor.unkillable", gpu_state, now, pid=pid, since_s=since)
        gpu_state = replace(gpu_state, stressor=replace(stopping, reported=True))
        return Step(gpu_state=gpu_state, events=(event,))
    return Step(gpu_state=gpu_state)


def deadline(gpu_state: GpuState, config: Config) -> float | None:
    """Compute when this GPU needs the next step without any news; None if it needs none."""
    match gpu_state.stressor:
        case Starting(since=since) as starting:
            return min(slow_start.due(starting), since + config.start_timeout)
        case Running(last_progress=last, grown_since=since):
            listed_at = math.inf if since is None else since + LIST_WAIT_S
            return min(last + config.hang_after, listed_at)
        case Stopping(exit=ChildExit(at=at)):
            return at + SETTLE_TIMEOUT_S
        case Stopping(kill_sent=False, kill_at=kill_at):
            return kill_at
        case Stopping(reported=False, kill_at=kill_at):
            return kill_at + UNKILLABLE_AFTER_S
        case Backoff(until=until):
            return until
        case Stopped() if isinstance(gpu_state.occupancy, Idle):
            return gpu_state.occupancy.since + max(gpu_state.rearm, config.idle_wait)
        case _:
            return None
