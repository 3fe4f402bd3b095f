"""One stressor's state machine: first fold in what happened, then take at most one step. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.actions import Ask, Event, Kill
from sentinel.core.events import gpu_event, who
from sentinel.core.gpu.memory_accounting import unattributed_memory
from sentinel.core.gpu.newcomer import PAIRING, expect, newcomer
from sentinel.core.gpu.teardown import SETTLE_WITHIN, Step, settle
from sentinel.core.observation import ChildExit, ChildFacts
from sentinel.core.state import (
    Backoff,
    Evidence,
    EvidenceKind,
    GpuState,
    Idle,
    Running,
    Starting,
    StopCause,
    Stopped,
    Stopping,
    Unknown,
)
from sentinel.protocol.gpu import Reading
from sentinel.protocol.stressor import (
    ChildMessage,
    CreatingContext,
    Failed,
    FailureKind,
    MemoryContention,
    Note,
    Progress,
    Ready,
)

#: After so many seconds of RUNNING the pause after a failure begins at its shortest again.
FORGIVEN_AFTER = 60.0
#: A child that lives this long after SIGKILL is reported: teardown took at most 0.3 s on an H200.
UNKILLABLE_AFTER = 10.0
#: What a stressor does of which nothing is heard any more.
_NO_PACE = "the workload does not come back to ctx.pace(), which it must within 50 ms"

#: How many characters of what a workload says that it is at are kept; a plugin may have written it.
LONGEST_NOTE = 200


def start(gpu_state: GpuState, reading: Reading, now: float, *, clearing: bool = False) -> GpuState:
    """Return the slot with a child of the next generation in it."""
    baseline = reading.memory.used if reading.memory else 0
    unattributed = unattributed_memory(reading)
    before = tuple(process.pid for process in reading.processes or ())
    generation = gpu_state.generation + 1
    stressor = Starting(
        generation=generation,
        since=now,
        baseline=baseline,
        unattributed=unattributed,
        before=before,
        clearing=clearing,
    )
    return replace(gpu_state, generation=generation, stressor=stressor, started=now)


# --- folding in what happened ----------------------------------------------------------------


def fold(gpu_state: GpuState, facts: ChildFacts, now: float) -> Step:
    """Fold in what became known of the child, message by message and its exit last."""
    if facts.generation != gpu_state.generation:
        return Step(gpu_state=gpu_state)
    events: list[Event] = []
    if facts.child is not None and isinstance(gpu_state.stressor, Starting):
        gpu_state = replace(gpu_state, stressor=replace(gpu_state.stressor, child=facts.child))
    for message in facts.messages:
        gpu_state, event = _hear(gpu_state, message, now)
        events += [event] if event else []
    if facts.garbage is not None and isinstance(gpu_state.stressor, Starting | Running):
        failed = Failed(kind=FailureKind.GARBAGE, reason=facts.garbage)
        gpu_state = _leave(gpu_state, StopCause.GARBAGE, now, kill_at=now, failed=failed)
    if facts.killed_at is not None and isinstance(gpu_state.stressor, Stopping):
        gpu_state = replace(
            gpu_state, stressor=replace(gpu_state.stressor, killed_at=facts.killed_at)
        )
    if facts.exit is not None:
        if isinstance(gpu_state.stressor, Starting) and gpu_state.stressor.contention is not None:
            evidence = Evidence(
                kind=EvidenceKind.MEMORY, at=facts.exit.at, grown=gpu_state.stressor.contention
            )
            events.append(_yielding(gpu_state, evidence, now))
            gpu_state = _leave(gpu_state, StopCause.YIELD, now, kill_at=now, evidence=evidence)
        if isinstance(gpu_state.stressor, Starting | Running):
            gpu_state = _leave(gpu_state, StopCause.EXITED, now, kill_at=now)
        if isinstance(gpu_state.stressor, Stopping):
            gpu_state = replace(gpu_state, stressor=replace(gpu_state.stressor, exit=facts.exit))
    return Step(gpu_state=gpu_state, events=tuple(events))


def _hear(gpu_state: GpuState, message: ChildMessage, now: float) -> tuple[GpuState, Event | None]:
    """Fold in one message of the child; what does not fit its state is passed over."""
    match message, gpu_state.stressor:
        case CreatingContext(), Starting() as starting:
            return replace(gpu_state, stressor=replace(starting, attaching=True)), None
        case MemoryContention(grown=grown), Starting() as starting:
            return replace(gpu_state, stressor=replace(starting, contention=grown)), None
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
            gpu_state = replace(gpu_state, stressor=running)
            fields = {**vars(message), "start_s": now - starting.since}
            return gpu_state, gpu_event("stressor.ready", gpu_state, now, **fields)
        case Note(text=text), Running() as running:
            return replace(gpu_state, stressor=replace(running, note=text[:LONGEST_NOTE])), None
        case Progress(), Running() | Stopping() as stressor:
            if isinstance(stressor, Running):
                stressor = replace(stressor, progress=message, last_progress=now)
            return replace(gpu_state, stressor=stressor), _mismatch(gpu_state, message, now)
        case Failed(), Starting() | Running():
            return _leave(gpu_state, StopCause.EXITED, now, kill_at=now + 1.0, failed=message), None
        case Failed(), Stopping() as stopping:
            return replace(gpu_state, stressor=replace(stopping, failed=message)), None
        case _:
            return gpu_state, None


def _mismatch(gpu_state: GpuState, progress: Progress, now: float) -> Event | None:
    """Say that results were wrong, if any were; also in a child's last words."""
    if not progress.errors:
        return None
    fields = {"errors": progress.errors, "checks": progress.checks}
    return gpu_event("stressor.mismatch", gpu_state, now, **fields)


# --- one step --------------------------------------------------------------------------------


def step(
    gpu_state: GpuState, reading: Reading | None, now: float, config: Config, *, stalled: bool
) -> Step:
    """Take at most one step, from what the occupancy in ``gpu_state`` and the clock say.

    Args:
        gpu_state: With the facts folded in and its occupancy health anew.
        reading: The latest reading of this GPU.
        now: The time of this tick.
        config: For the time limits.
        stalled: Whether the supervisor itself did not run for a while just now.
    """
    match gpu_state.stressor:
        case Starting() | Running():
            return _live(expect(gpu_state, reading, now, config), reading, now, config)
        case Stopping(exit=None):
            return _dying(gpu_state, reading, now, config)
        case Stopping() as stopping:
            return settle(gpu_state, stopping, reading, now, config, stalled=stalled)
        case Backoff(until=until) if now >= until:
            return Step(gpu_state=replace(gpu_state, stressor=Stopped()))
        case _:
            return Step(gpu_state=gpu_state)


def stop(gpu_state: GpuState, cause: StopCause, now: float, kill_at: float) -> Step:
    """Ask a living child to end, and have it killed at ``kill_at`` otherwise, which may be now."""
    if now >= kill_at:
        return _kill(gpu_state, cause, now)
    ask = Ask(uuid=gpu_state.gpu.uuid, generation=gpu_state.generation)
    return Step(gpu_state=_leave(gpu_state, cause, now, kill_at=kill_at), actions=(ask,))


def bring_forward(gpu_state: GpuState, kill_at: float) -> GpuState:
    """Have a child that was asked to end killed no later than ``kill_at``."""
    stopping = gpu_state.stressor
    if not isinstance(stopping, Stopping) or stopping.kill_sent:
        return gpu_state
    return replace(gpu_state, stressor=replace(stopping, kill_at=min(kill_at, stopping.kill_at)))


def _live(gpu_state: GpuState, reading: Reading | None, now: float, config: Config) -> Step:
    """Look after a living child: yield, drop what nobody can read, end what takes too long."""
    if isinstance(gpu_state.occupancy, Unknown):
        return _kill(gpu_state, StopCause.UNKNOWN, now)
    evidence = newcomer(gpu_state, reading, now, config)
    if evidence is not None:
        return _yield(gpu_state, evidence, now, config)
    match gpu_state.stressor:
        case Starting(since=since) if now - since >= config.start_timeout:
            reason = f"not ready within {config.start_timeout:g} s"
            failed = Failed(kind=FailureKind.NOT_READY, reason=reason)
            return _kill(gpu_state, StopCause.START_TIMEOUT, now, failed)
        case Running(last_progress=last) if now - last >= config.hang_after:
            reason = f"no progress for {config.hang_after:g} s: {_NO_PACE}"
            failed = Failed(kind=FailureKind.HANG, reason=reason)
            return _kill(gpu_state, StopCause.HANG, now, failed)
        case _:
            return Step(gpu_state=gpu_state)


def _yield(gpu_state: GpuState, evidence: Evidence, now: float, config: Config) -> Step:
    """Answer a newcomer: one SIGKILL in this tick, or a request where a kill harms the card."""
    events = (_yielding(gpu_state, evidence, now),)
    if config.yield_how == "kill":
        return replace(_kill(gpu_state, StopCause.YIELD, now, evidence=evidence), events=events)
    ask = Ask(uuid=gpu_state.gpu.uuid, generation=gpu_state.generation)
    kill_at = now + config.yield_grace
    gpu_state = _leave(gpu_state, StopCause.YIELD, now, kill_at=kill_at, evidence=evidence)
    return Step(gpu_state=gpu_state, actions=(ask,), events=events)


def _yielding(gpu_state: GpuState, evidence: Evidence, now: float) -> Event:
    """Say who came, and to a stressor in which state."""
    return gpu_event(
        "gpu.yielding",
        gpu_state,
        now,
        evidence=evidence.kind.value,
        evidence_at=evidence.at,
        read_s=evidence.took,
        grown=evidence.grown,
        processes=who(gpu_state),
        stressor=type(gpu_state.stressor).__name__.upper(),
    )


def _kill(
    gpu_state: GpuState,
    cause: StopCause,
    now: float,
    failed: Failed | None = None,
    evidence: Evidence | None = None,
) -> Step:
    """Have the child killed in this tick."""
    gpu_state = _leave(
        gpu_state, cause, now, kill_at=now, failed=failed, evidence=evidence, kill_sent=True
    )
    return Step(
        gpu_state=gpu_state,
        actions=(Kill(uuid=gpu_state.gpu.uuid, generation=gpu_state.generation),),
    )


def _leave(
    gpu_state: GpuState,
    cause: StopCause,
    now: float,
    *,
    kill_at: float,
    failed: Failed | None = None,
    evidence: Evidence | None = None,
    kill_sent: bool = False,
) -> GpuState:
    """Return the slot with its living child in STOPPING."""
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
        ran=isinstance(live, Running) and now - live.since >= FORGIVEN_AFTER,
        clearing=isinstance(live, Starting) and live.clearing,
        evidence=evidence,
        kill_sent=kill_sent,
        failed=failed,
    )
    return replace(gpu_state, stressor=stopping)


def _dying(gpu_state: GpuState, reading: Reading | None, now: float, config: Config) -> Step:
    """Wait for the child's exit: kill it when its time is over or somebody comes, and say so."""
    stopping = gpu_state.stressor
    if not isinstance(stopping, Stopping):
        return Step(gpu_state=gpu_state)
    if not stopping.kill_sent:
        # Who was asked because of a newcomer has its time; everybody else has it until one comes.
        evidence = newcomer(gpu_state, reading, now, config) if stopping.evidence is None else None
        if evidence is None and now < stopping.kill_at:
            return Step(gpu_state=gpu_state)
        if evidence is not None:
            stopping = replace(stopping, cause=StopCause.YIELD, evidence=evidence)
        stopping = replace(stopping, kill_sent=True, kill_at=now)
        kill = Kill(uuid=gpu_state.gpu.uuid, generation=gpu_state.generation)
        events = (_yielding(gpu_state, evidence, now),) if evidence else ()
        return Step(gpu_state=replace(gpu_state, stressor=stopping), actions=(kill,), events=events)
    if not stopping.reported and now - stopping.kill_at >= UNKILLABLE_AFTER:
        pid = stopping.child.pid if stopping.child else None
        since = now - stopping.kill_at
        event = gpu_event("stressor.unkillable", gpu_state, now, pid=pid, since_s=since)
        gpu_state = replace(gpu_state, stressor=replace(stopping, reported=True))
        return Step(gpu_state=gpu_state, events=(event,))
    return Step(gpu_state=gpu_state)


# --- time and words --------------------------------------------------------------------------


def deadline(gpu_state: GpuState, config: Config) -> float | None:
    """Return when this slot must be looked at again even if nothing happens."""
    match gpu_state.stressor:
        case Starting(since=since):
            return since + config.start_timeout
        case Running(last_progress=last, grown_at=grown_at):
            paired = last if grown_at is None else grown_at + PAIRING - config.hang_after
            return min(last, paired) + config.hang_after
        case Stopping(exit=ChildExit(at=at)):
            return at + SETTLE_WITHIN
        case Stopping(kill_sent=False, kill_at=kill_at):
            return kill_at
        case Stopping(reported=False, kill_at=kill_at):
            return kill_at + UNKILLABLE_AFTER
        case Backoff(until=until):
            return until
        case Stopped() if isinstance(gpu_state.occupancy, Idle):
            return gpu_state.occupancy.since + max(gpu_state.rearm, config.idle_wait)
        case _:
            return None
