"""Advance the state machine of one stressor by at most one step. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core import start_memory
from sentinel.core.gpu_state import (
    Backoff,
    Evidence,
    Fatal,
    GpuState,
    Running,
    Starting,
    StopCause,
    Stopped,
    Stopping,
    Unknown,
)
from sentinel.core.newcomer import LIST_WAIT_S
from sentinel.core.observation import Observation
from sentinel.core.step import Event, Kill, Send, Step, gpu_event, process_fields, upcoming
from sentinel.core.teardown import settle
from sentinel.protocol.gpu import Reading
from sentinel.protocol.stressor import (
    Announcement,
    CreatingContext,
    Failed,
    FailureKind,
    StartStage,
    Stop,
)

#: A start that takes so many seconds is reported. With a standby stressor it takes one, without one
#: some five, and 14 if torch is imported from a cold disk.
SLOW_AFTER_S = 10.0
#: For how long a workload prepares until its author is told how that ends.
LONG_PREPARATION_S = 30.0

#: What a stressor does in each stage of its start.
_STAGES = {
    StartStage.REHEARSING: "rehearsing on a part of the memory",
    StartStage.TAKING: "taking its memory",
    StartStage.PREPARING: "preparing, and doing the first work",
}
#: For the author of a workload.
_NO_START = (
    "; it has not called ctx.pace() twice, which it must before it is ready, and then every 50 ms"
)
_NO_PACE = "the workload does not come back to ctx.pace(), which it must within 50 ms"

#: A child that lives so many seconds after SIGKILL is reported; teardown took 0.3 s on an H200.
UNKILLABLE_AFTER_S = 10.0


def advance_start(
    starting: Starting, message: CreatingContext | Announcement, now: float
) -> Starting:
    """Record how far a stressor has come."""
    if isinstance(message, Announcement):
        return start_memory.begin_stage(starting, message, now)
    return starting if starting.attaching is not None else replace(starting, attaching=now)


def waits_for(starting: Starting) -> str:
    """Describe what a stressor does before it is ready."""
    if starting.announced is not None:
        told = _NO_START if starting.slow_reports > 1 else ""
        return _STAGES[starting.announced.stage] + told
    if starting.attaching is not None:
        return "creating its context"
    return "importing torch and the workload"


def report_slow_start(gpu_state: GpuState, seen: Observation, config: Config) -> Step[GpuState]:
    """Report a start that takes long, once, and then a workload that prepares for long, once."""
    starting = gpu_state.stressor
    if not isinstance(starting, Starting):
        return Step(gpu_state)
    now, said = seen.now, starting.announced
    prepares = said is not None and said.stage is StartStage.PREPARING
    if starting.slow_reports == 0:
        due = starting.since + SLOW_AFTER_S
    elif starting.slow_reports == 1 and prepares:
        due = starting.announced_at + LONG_PREPARATION_S
    else:
        return Step(gpu_state)
    if now < due:
        return Step(gpu_state, due=due)
    starting = replace(starting, slow_reports=starting.slow_reports + 1)
    event = gpu_event(
        "stressor.slow_start",
        gpu_state,
        now,
        reason=waits_for(starting),
        since_s=round(now - starting.since, 1),
        left_s=max(0.0, starting.since + config.start_timeout - now),
    )
    return Step(replace(gpu_state, stressor=starting), events=(event,))


def start(
    gpu_state: GpuState, reading: Reading, now: float, config: Config, *, clearing: bool = False
) -> Step[GpuState]:
    """Move a GPU to STARTING with a child of the next generation."""
    launch = replace(
        gpu_state.launch,
        at=now,
        child=None,
        clearing=clearing,
        baseline=reading.memory.used if reading.memory else 0,
        most=start_memory.most_memory(reading, config),
        unattributed=gpu_state.attribution.unattributed,
        before=tuple(process.pid for process in reading.processes or ()),
    )
    gpu_state = replace(
        gpu_state,
        generation=gpu_state.generation + 1,
        launch=launch,
        stressor=Starting(since=now),
    )
    return Step(gpu_state, due=now + min(config.start_timeout, SLOW_AFTER_S))


def step(
    gpu_state: GpuState,
    reading: Reading | None,
    evidence: Evidence | None,
    now: float,
    config: Config,
    *,
    unwatched: float | None,
    stalled: bool,
) -> Step[GpuState]:
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
            if stopping.cause is StopCause.EXITED and _has_another_workload(gpu_state, config):
                stopping = replace(stopping, cause=StopCause.POLICY)
            return settle(gpu_state, stopping, reading, now, stalled=stalled)
        case Backoff(until=until) if now >= until:
            return Step(replace(gpu_state, stressor=Stopped()))
        case Backoff(until=until):
            return Step(gpu_state, due=until)
        case _:
            return Step(gpu_state)


def _has_another_workload(gpu_state: GpuState, config: Config) -> bool:
    """Check whether new settings have replaced the workload of the stressor that ends.

    Its failure would make the GPU FATAL with a workload that has never run. A plan changes it, too,
    and counts each failure.
    """
    spec = gpu_state.launch.spec
    return config.plan is None and spec is not None and spec.workload != config.workload


def stop(
    gpu_state: GpuState, cause: StopCause, now: float, kill_at: float, config: Config
) -> Step[GpuState]:
    """Request a living child to stop, to be killed at ``kill_at``.

    A child that still starts has no work to finish, and is killed at once: it might answer only
    when its context is created and its memory taken. Not with ``yield = "ask"``: a kill while its
    first kernels run may leave the GPU unusable.
    """
    starts = isinstance(gpu_state.stressor, Starting)
    if now >= kill_at or (starts and config.yield_how == "kill"):
        return _kill(gpu_state, cause, now)
    return _request_stop(gpu_state, cause, now, kill_at)


def reset_failures(gpu_state: GpuState) -> GpuState:
    """End the back-off and the FATAL state of a GPU, as the operator asks for a stressor."""
    if isinstance(gpu_state.stressor, Fatal | Backoff):
        return replace(gpu_state, stressor=Stopped(), failures=(), streak=0)
    return gpu_state


def shut_down(gpu_state: GpuState, now: float, kill_at: float, config: Config) -> Step[GpuState]:
    """Stop a living child for a shutdown; bring the kill of one that is stopping forward."""
    match gpu_state.stressor:
        case Starting() | Running():
            return stop(gpu_state, StopCause.SHUTDOWN, now, kill_at, config)
        case Stopping(exit=None, kill_sent=False) as stopping:
            stopping = replace(stopping, kill_at=min(kill_at, stopping.kill_at))
            return _await_exit(replace(gpu_state, stressor=stopping), stopping, None, now)
        case _:
            return Step(gpu_state)


def _supervise(
    gpu_state: GpuState,
    evidence: Evidence | None,
    now: float,
    config: Config,
    unwatched: float | None,
    stalled: bool,  # noqa: FBT001 - passed on
) -> Step[GpuState]:
    """Yield to a newcomer; end a child on an unknown or unwatched GPU or past its time."""
    if isinstance(gpu_state.occupancy, Unknown):
        return _kill(gpu_state, StopCause.UNKNOWN, now)
    if evidence is not None:
        return _yield(gpu_state, evidence, now, config)
    if unwatched is not None:
        event = gpu_event("gpu.unwatched", gpu_state, now, unwatched_s=unwatched)
        return _kill(gpu_state, StopCause.UNWATCHED, now)._replace(events=(event,))
    match gpu_state.stressor:
        # The sums of the wake-ups: a difference may round to less, and wake up again at once.
        case Starting(since=since) as starting if now >= since + config.start_timeout:
            why = waits_for(starting)
            if why == _STAGES[StartStage.PREPARING]:
                why += _NO_START
            reason = f"not ready within {config.start_timeout:g} s: {why}"
            failed = Failed(kind=FailureKind.NOT_READY, reason=reason)
            return _kill(gpu_state, StopCause.START_TIMEOUT, now, failed)
        case Running(last_progress=last) if now >= last + config.hang_after and not stalled:
            reason = f"no progress for {config.hang_after:g} s: {_NO_PACE}"
            failed = Failed(kind=FailureKind.HANG, reason=reason)
            return _kill(gpu_state, StopCause.HANG, now, failed)
        case Starting(since=since):
            return Step(gpu_state, due=since + config.start_timeout)
        case Running(last_progress=last, grown_since=since):
            listed_at = None if since is None else since + LIST_WAIT_S
            return Step(gpu_state, due=upcoming(now, last + config.hang_after, listed_at))
        case _:
            return Step(gpu_state)


def _yield(gpu_state: GpuState, evidence: Evidence, now: float, config: Config) -> Step[GpuState]:
    """Kill the child in this tick, or request it to stop first (yield.how = ask)."""
    events = (yielding(gpu_state, evidence, now),)
    if config.yield_how == "kill":
        step = _kill(gpu_state, StopCause.YIELD, now, evidence=evidence)
    else:
        kill_at = now + config.yield_grace
        step = _request_stop(gpu_state, StopCause.YIELD, now, kill_at, evidence)
    return step._replace(events=events)


def yielding(gpu_state: GpuState, evidence: Evidence, now: float) -> Event:
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
) -> Step[GpuState]:
    """Request the child to stop, and schedule its kill."""
    request = Send(uuid=gpu_state.gpu.uuid, generation=gpu_state.generation, message=Stop())
    gpu_state = to_stopping(gpu_state, cause, now, kill_at=kill_at, evidence=evidence)
    return Step(gpu_state, actions=(request,), due=kill_at)


def _kill(
    gpu_state: GpuState,
    cause: StopCause,
    now: float,
    failed: Failed | None = None,
    evidence: Evidence | None = None,
) -> Step[GpuState]:
    """Kill the child in this tick."""
    kill = Kill(uuid=gpu_state.gpu.uuid, generation=gpu_state.generation)
    gpu_state = to_stopping(
        gpu_state, cause, now, kill_at=now, failed=failed, evidence=evidence, kill_sent=True
    )
    return Step(gpu_state, actions=(kill,), due=now + UNKILLABLE_AFTER_S)


def to_stopping(
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
        since=now,
        cause=cause,
        kill_at=kill_at,
        running=live if isinstance(live, Running) else None,
        evidence=evidence,
        kill_sent=kill_sent,
        failed=failed,
    )
    return replace(gpu_state, stressor=stopping)


def _await_exit(
    gpu_state: GpuState, stopping: Stopping, evidence: Evidence | None, now: float
) -> Step[GpuState]:
    """Kill a stopping child when its time is over or a newcomer appears; report a survivor.

    After a yield request the full grace applies; any other stop is cut short by a newcomer.
    """
    if not stopping.kill_sent:
        if evidence is None and now < stopping.kill_at:
            return Step(gpu_state, due=stopping.kill_at)
        if evidence is not None:
            stopping = replace(stopping, cause=StopCause.YIELD, evidence=evidence)
        stopping = replace(stopping, kill_sent=True, kill_at=now)
        kill = Kill(uuid=gpu_state.gpu.uuid, generation=gpu_state.generation)
        events = (yielding(gpu_state, evidence, now),) if evidence else ()
        return Step(
            replace(gpu_state, stressor=stopping),
            actions=(kill,),
            events=events,
            due=now + UNKILLABLE_AFTER_S,
        )
    report_at = stopping.kill_at + UNKILLABLE_AFTER_S
    if stopping.reported or now < report_at:
        return Step(gpu_state, due=upcoming(now, report_at))
    pid = gpu_state.child.pid if gpu_state.child else None
    since = now - stopping.kill_at
    event = gpu_event("stressor.unkillable", gpu_state, now, pid=pid, since_s=since)
    gpu_state = replace(gpu_state, stressor=replace(stopping, reported=True))
    return Step(gpu_state, events=(event,))
