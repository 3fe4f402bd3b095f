"""One stressor's state machine: first fold in what happened, then take at most one step. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.actions import Ask, Event, Kill
from sentinel.core.events import slot_event, who
from sentinel.core.gpu.memory_accounting import nobodys_memory
from sentinel.core.gpu.newcomer import PAIRING, expect, newcomer
from sentinel.core.gpu.teardown import SETTLE_WITHIN, Step, settle
from sentinel.core.observation import ChildExit, ChildFacts
from sentinel.core.state import (
    Backoff,
    Idle,
    Running,
    Sign,
    SignKind,
    Slot,
    Starting,
    StopCause,
    Stopped,
    Stopping,
    Unknown,
)
from sentinel.protocol.gpu import Reading
from sentinel.protocol.stressor import (
    Attaching,
    ChildMessage,
    Crowded,
    Failed,
    FailureKind,
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


def start(slot: Slot, reading: Reading, now: float, *, clearing: bool = False) -> Slot:
    """Return the slot with a child of the next generation in it."""
    baseline = reading.memory.used if reading.memory else 0
    unnamed = nobodys_memory(reading)
    before = tuple(process.pid for process in reading.processes or ())
    generation = slot.generation + 1
    stressor = Starting(
        generation=generation,
        since=now,
        baseline=baseline,
        unnamed=unnamed,
        before=before,
        clearing=clearing,
    )
    return replace(slot, generation=generation, stressor=stressor, started=now)


# --- folding in what happened ----------------------------------------------------------------


def fold(slot: Slot, facts: ChildFacts, now: float) -> Step:
    """Fold in what became known of the child, message by message and its exit last."""
    if facts.generation != slot.generation:
        return Step(slot=slot)
    events: list[Event] = []
    if facts.child is not None and isinstance(slot.stressor, Starting):
        slot = replace(slot, stressor=replace(slot.stressor, child=facts.child))
    for message in facts.messages:
        slot, event = _hear(slot, message, now)
        events += [event] if event else []
    if facts.garbage is not None and isinstance(slot.stressor, Starting | Running):
        failed = Failed(kind=FailureKind.GARBAGE, reason=facts.garbage)
        slot = _leave(slot, StopCause.GARBAGE, now, kill_at=now, failed=failed)
    if facts.killed_at is not None and isinstance(slot.stressor, Stopping):
        slot = replace(slot, stressor=replace(slot.stressor, killed_at=facts.killed_at))
    if facts.exit is not None:
        if isinstance(slot.stressor, Starting) and slot.stressor.crowded is not None:
            sign = Sign(kind=SignKind.MEMORY, at=facts.exit.at, grown=slot.stressor.crowded)
            events.append(_yielding(slot, sign, now))
            slot = _leave(slot, StopCause.YIELD, now, kill_at=now, sign=sign)
        if isinstance(slot.stressor, Starting | Running):
            slot = _leave(slot, StopCause.EXITED, now, kill_at=now)
        if isinstance(slot.stressor, Stopping):
            slot = replace(slot, stressor=replace(slot.stressor, exit=facts.exit))
    return Step(slot=slot, events=tuple(events))


def _hear(slot: Slot, message: ChildMessage, now: float) -> tuple[Slot, Event | None]:
    """Fold in one message of the child; what does not fit its state is passed over."""
    match message, slot.stressor:
        case Attaching(), Starting() as starting:
            return replace(slot, stressor=replace(starting, attaching=True)), None
        case Crowded(grown=grown), Starting() as starting:
            return replace(slot, stressor=replace(starting, crowded=grown)), None
        case Ready(), Starting() as starting:
            running = Running(
                generation=starting.generation,
                since=now,
                baseline=starting.baseline,
                unnamed=starting.unnamed,
                before=starting.before,
                child=starting.child,
                ready=message,
                last_progress=now,
            )
            slot = replace(slot, stressor=running)
            fields = {**vars(message), "start_s": now - starting.since}
            return slot, slot_event("stressor.ready", slot, now, **fields)
        case Note(text=text), Running() as running:
            return replace(slot, stressor=replace(running, note=text[:LONGEST_NOTE])), None
        case Progress(), Running() | Stopping() as stressor:
            if isinstance(stressor, Running):
                stressor = replace(stressor, progress=message, last_progress=now)
            return replace(slot, stressor=stressor), _mismatch(slot, message, now)
        case Failed(), Starting() | Running():
            return _leave(slot, StopCause.EXITED, now, kill_at=now + 1.0, failed=message), None
        case Failed(), Stopping() as stopping:
            return replace(slot, stressor=replace(stopping, failed=message)), None
        case _:
            return slot, None


def _mismatch(slot: Slot, progress: Progress, now: float) -> Event | None:
    """Say that results were wrong, if any were; also in a child's last words."""
    if not progress.errors:
        return None
    fields = {"errors": progress.errors, "checks": progress.checks}
    return slot_event("stressor.mismatch", slot, now, **fields)


# --- one step --------------------------------------------------------------------------------


def step(slot: Slot, reading: Reading | None, now: float, config: Config, *, stalled: bool) -> Step:
    """Take at most one step, from what the occupancy in ``slot`` and the clock say.

    Args:
        slot: With the facts folded in and its occupancy judged anew.
        reading: The latest reading of this GPU.
        now: The time of this tick.
        config: For the time limits.
        stalled: Whether the supervisor itself did not run for a while just now.
    """
    match slot.stressor:
        case Starting() | Running():
            return _live(expect(slot, reading, now, config), reading, now, config)
        case Stopping(exit=None):
            return _dying(slot, reading, now, config)
        case Stopping() as stopping:
            return settle(slot, stopping, reading, now, config, stalled=stalled)
        case Backoff(until=until) if now >= until:
            return Step(slot=replace(slot, stressor=Stopped()))
        case _:
            return Step(slot=slot)


def stop(slot: Slot, cause: StopCause, now: float, kill_at: float) -> Step:
    """Ask a living child to end, and have it killed at ``kill_at`` otherwise, which may be now."""
    if now >= kill_at:
        return _kill(slot, cause, now)
    ask = Ask(uuid=slot.gpu.uuid, generation=slot.generation)
    return Step(slot=_leave(slot, cause, now, kill_at=kill_at), actions=(ask,))


def hurry(slot: Slot, kill_at: float) -> Slot:
    """Have a child that was asked to end killed no later than ``kill_at``."""
    stopping = slot.stressor
    if not isinstance(stopping, Stopping) or stopping.kill_sent:
        return slot
    return replace(slot, stressor=replace(stopping, kill_at=min(kill_at, stopping.kill_at)))


def _live(slot: Slot, reading: Reading | None, now: float, config: Config) -> Step:
    """Look after a living child: yield, drop what nobody can read, end what takes too long."""
    if isinstance(slot.occupancy, Unknown):
        return _kill(slot, StopCause.UNKNOWN, now)
    sign = newcomer(slot, reading, now, config)
    if sign is not None:
        return _yield(slot, sign, now, config)
    match slot.stressor:
        case Starting(since=since) if now - since >= config.start_timeout:
            reason = f"not ready within {config.start_timeout:g} s"
            failed = Failed(kind=FailureKind.NOT_READY, reason=reason)
            return _kill(slot, StopCause.START_TIMEOUT, now, failed)
        case Running(last_progress=last) if now - last >= config.hang_after:
            reason = f"no progress for {config.hang_after:g} s: {_NO_PACE}"
            failed = Failed(kind=FailureKind.HANG, reason=reason)
            return _kill(slot, StopCause.HANG, now, failed)
        case _:
            return Step(slot=slot)


def _yield(slot: Slot, sign: Sign, now: float, config: Config) -> Step:
    """Answer a newcomer: one SIGKILL in this tick, or a request where a kill harms the card."""
    events = (_yielding(slot, sign, now),)
    if config.yield_how == "kill":
        return replace(_kill(slot, StopCause.YIELD, now, sign=sign), events=events)
    ask = Ask(uuid=slot.gpu.uuid, generation=slot.generation)
    kill_at = now + config.yield_grace
    slot = _leave(slot, StopCause.YIELD, now, kill_at=kill_at, sign=sign)
    return Step(slot=slot, actions=(ask,), events=events)


def _yielding(slot: Slot, sign: Sign, now: float) -> Event:
    """Say who came, and to a stressor in which state."""
    return slot_event(
        "gpu.yielding",
        slot,
        now,
        sign=sign.kind.value,
        sign_at=sign.at,
        read_s=sign.took,
        grown=sign.grown,
        by=who(slot),
        stressor=type(slot.stressor).__name__.upper(),
    )


def _kill(
    slot: Slot,
    cause: StopCause,
    now: float,
    failed: Failed | None = None,
    sign: Sign | None = None,
) -> Step:
    """Have the child killed in this tick."""
    slot = _leave(slot, cause, now, kill_at=now, failed=failed, sign=sign, kill_sent=True)
    return Step(slot=slot, actions=(Kill(uuid=slot.gpu.uuid, generation=slot.generation),))


def _leave(
    slot: Slot,
    cause: StopCause,
    now: float,
    *,
    kill_at: float,
    failed: Failed | None = None,
    sign: Sign | None = None,
    kill_sent: bool = False,
) -> Slot:
    """Return the slot with its living child in STOPPING."""
    live = slot.stressor
    if not isinstance(live, Starting | Running):
        return slot
    stopping = Stopping(
        generation=live.generation,
        since=now,
        cause=cause,
        baseline=live.baseline,
        unnamed=live.unnamed,
        child=live.child,
        kill_at=kill_at,
        ran=isinstance(live, Running) and now - live.since >= FORGIVEN_AFTER,
        clearing=isinstance(live, Starting) and live.clearing,
        sign=sign,
        kill_sent=kill_sent,
        failed=failed,
    )
    return replace(slot, stressor=stopping)


def _dying(slot: Slot, reading: Reading | None, now: float, config: Config) -> Step:
    """Wait for the child's exit: kill it when its time is over or somebody comes, and say so."""
    stopping = slot.stressor
    if not isinstance(stopping, Stopping):
        return Step(slot=slot)
    if not stopping.kill_sent:
        # Who was asked because of a newcomer has its time; everybody else has it until one comes.
        sign = newcomer(slot, reading, now, config) if stopping.sign is None else None
        if sign is None and now < stopping.kill_at:
            return Step(slot=slot)
        if sign is not None:
            stopping = replace(stopping, cause=StopCause.YIELD, sign=sign)
        stopping = replace(stopping, kill_sent=True, kill_at=now)
        kill = Kill(uuid=slot.gpu.uuid, generation=slot.generation)
        events = (_yielding(slot, sign, now),) if sign else ()
        return Step(slot=replace(slot, stressor=stopping), actions=(kill,), events=events)
    if not stopping.reported and now - stopping.kill_at >= UNKILLABLE_AFTER:
        pid = stopping.child.pid if stopping.child else None
        since = now - stopping.kill_at
        event = slot_event("stressor.unkillable", slot, now, pid=pid, since_s=since)
        slot = replace(slot, stressor=replace(stopping, reported=True))
        return Step(slot=slot, events=(event,))
    return Step(slot=slot)


# --- time and words --------------------------------------------------------------------------


def deadline(slot: Slot, config: Config) -> float | None:
    """Return when this slot must be looked at again even if nothing happens."""
    match slot.stressor:
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
        case Stopped() if isinstance(slot.occupancy, Idle):
            return slot.occupancy.since + max(slot.rearm, config.idle_wait)
        case _:
            return None
