"""Apply the messages and the exit of a child to the state of its GPU. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.actions import Event
from sentinel.core.events import gpu_event
from sentinel.core.gpu import slow_start, verified_work
from sentinel.core.gpu.attribution import SLACK_BYTES
from sentinel.core.gpu.lifecycle import to_stopping, yielding
from sentinel.core.gpu.newcomer import plausible
from sentinel.core.gpu_state import GpuState
from sentinel.core.observation import ChildExit, ChildFacts
from sentinel.core.step import Step
from sentinel.core.stressor_state import (
    Evidence,
    EvidenceKind,
    Running,
    Starting,
    StopCause,
    Stopping,
)
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

#: A workload's note is cut to this many characters; a plugin may have written it.
MAX_NOTE_LENGTH = 200


def fold(gpu_state: GpuState, facts: ChildFacts, now: float) -> Step[GpuState]:
    """Apply the new facts about the child: each message, and its exit last."""
    if facts.generation != gpu_state.generation:
        return Step(gpu_state)
    if facts.child is not None and isinstance(gpu_state.stressor, Starting):
        gpu_state = replace(gpu_state, stressor=replace(gpu_state.stressor, child=facts.child))
    step = Step(gpu_state)
    for message in facts.messages:
        step = step.then(_apply, message, now)
    step = step.then(_ended, facts, now)
    return step if facts.exit is None else step.then(_exited, facts.exit, now)


def _ended(gpu_state: GpuState, facts: ChildFacts, now: float) -> Step[GpuState]:
    """Apply that the child sent garbage, or when it was killed."""
    if facts.garbage is not None and isinstance(gpu_state.stressor, Starting | Running):
        failed = Failed(kind=FailureKind.GARBAGE, reason=facts.garbage)
        gpu_state = to_stopping(gpu_state, StopCause.GARBAGE, now, kill_at=now, failed=failed)
    match gpu_state.stressor:
        case Stopping(killed_at=None) as stopping if facts.killed_at is not None:
            stopping = replace(stopping, killed_at=facts.killed_at)
            gpu_state = replace(gpu_state, stressor=stopping)
    return Step(gpu_state)


def _exited(gpu_state: GpuState, exit_: ChildExit, now: float) -> Step[GpuState]:
    """Apply the exit of the child; one that saw memory contention has yielded by itself."""
    step = Step(gpu_state)
    match gpu_state.stressor:
        case (
            Starting(contention=MemoryContention() as seen)
            | Running(contention=MemoryContention() as seen)
        ):
            step = _yielded(gpu_state, replace(seen, at=seen.at or exit_.at), now)
    gpu_state = to_stopping(step.state, StopCause.EXITED, now, kill_at=now)
    if isinstance(gpu_state.stressor, Stopping):
        gpu_state = replace(gpu_state, stressor=replace(gpu_state.stressor, exit=exit_))
    step = step._replace(state=gpu_state)
    return step if gpu_state.burnin is None else step.then(_recorded, exit_, now)


def _recorded(gpu_state: GpuState, exit_: ChildExit, now: float) -> Step[GpuState]:
    """Report the exit for the record of a burn-in."""
    child = gpu_state.child
    values = {"pid": child.pid if child is not None else 0, "at": exit_.at}
    event = gpu_event("burnin.measured", gpu_state, now, kind="StressorExit", values=values)
    return Step(gpu_state, events=(event,))


def _apply(gpu_state: GpuState, message: ChildMessage, now: float) -> Step[GpuState]:
    """Apply one message of the child; ignore it if it does not fit the state."""
    match message, gpu_state.stressor:
        case CreatingContext() | Preparing(), Starting() as starting:
            starting = slow_start.advance(starting, message, now)
            return Step(replace(gpu_state, stressor=starting))
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
            return Step(replace(gpu_state, stressor=running), events=(event,))
        case Note(text=text), Running() as running:
            return Step(replace(gpu_state, stressor=replace(running, note=text[:MAX_NOTE_LENGTH])))
        case Progress(), Running() | Stopping() as stressor:
            if isinstance(stressor, Running):
                stressor = replace(stressor, progress=message, last_progress=now)
            gpu_state = verified_work.count(gpu_state, message, now)
            events = _mismatch(gpu_state, message, now)
            return Step(replace(gpu_state, stressor=stressor), events=events)
        case Failed(), Starting() | Running():
            later = now + 1.0
            return Step(
                to_stopping(gpu_state, StopCause.EXITED, now, kill_at=later, failed=message)
            )
        case Failed(), Stopping() as stopping:
            return Step(replace(gpu_state, stressor=replace(stopping, failed=message)))
        case _:
            return Step(gpu_state)


def _contend(gpu_state: GpuState, message: MemoryContention, now: float) -> Step[GpuState]:
    """Apply what the child saw of a newcomer; one that killed itself has yielded."""
    message = plausible(message, gpu_state.started, now)
    # After Ready the child counts from its limit, and that has the slack on top.
    seen = replace(message, grown=message.grown + SLACK_BYTES)
    match gpu_state.stressor:
        case Starting() as starting:
            return Step(replace(gpu_state, stressor=replace(starting, contention=message)))
        case Running() as running if seen.killed_at is None:
            return Step(replace(gpu_state, stressor=replace(running, contention=seen)))
        case Running() | Stopping(evidence=None, kill_sent=False):
            return _yielded(gpu_state, seen, now)
        case _:
            return Step(gpu_state)


def _yielded(gpu_state: GpuState, seen: MemoryContention, now: float) -> Step[GpuState]:
    """Record that the child has yielded by itself; it is killed all the same, in case it lied."""
    evidence = Evidence(
        kind=EvidenceKind.MEMORY, at=seen.at or now, took=seen.took, grown=seen.grown
    )
    event = yielding(gpu_state, evidence, now)
    gpu_state = to_stopping(gpu_state, StopCause.YIELD, now, kill_at=now)
    stopping = gpu_state.stressor
    if isinstance(stopping, Stopping):
        stopping = replace(
            stopping,
            cause=StopCause.YIELD,
            evidence=evidence,
            killed_at=seen.killed_at,
        )
    return Step(replace(gpu_state, stressor=stopping), events=(event,))


def _mismatch(gpu_state: GpuState, progress: Progress, now: float) -> tuple[Event, ...]:
    """Report wrong results, if there are any; also from a child that is stopping."""
    if not progress.errors:
        return ()
    fields = {"errors": progress.errors, "checks": progress.checks}
    return (gpu_event("stressor.mismatch", gpu_state, now, **fields),)
