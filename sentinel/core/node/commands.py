"""Apply the commands of clients to the state, and answer them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sentinel.config.build import build_config, resolve
from sentinel.config.model import SETTINGS, Config
from sentinel.config.schedule import first_after
from sentinel.config.setting import Scope
from sentinel.core import faults
from sentinel.core.burnin import interface as burnin
from sentinel.core.gpu_state import Backoff, Fatal, GpuState, Pause
from sentinel.core.lifecycle import reset_failures
from sentinel.core.node import daemon, grants, sessions, starts
from sentinel.core.node.command_result import (
    Accepted,
    RefusedError,
    caller_fields,
    check_gpus,
    check_owner,
    check_seconds,
    names_of,
)
from sentinel.core.node.gpu_settings import lay_settings
from sentinel.core.observation import Observation
from sentinel.core.state import State, each_gpu
from sentinel.core.step import Event, Role, SendTo, Step, chain, gpu_event
from sentinel.errors import ConfigError
from sentinel.protocol.commands import (
    AcknowledgeResults,
    Allocate,
    Caller,
    CancelGrant,
    Command,
    CommandReply,
    Configure,
    EndSession,
    Extend,
    Level,
    PauseGpus,
    Refusal,
    Reserve,
    ResumeGpus,
    StartSession,
    StopDaemon,
)
from sentinel.units import format_duration

#: Settings that are fixed at the start of the daemon: its probe, locks and sockets depend on them.
_FIXED = {setting.field: setting.key for setting in SETTINGS if setting.scope is Scope.START}


def apply(state: State, seen: Observation) -> Step[State]:
    """Apply the commands of this tick, each completely or not at all, and answer them."""
    given = seen.api.commands if seen.api is not None else ()
    return chain(Step(state), [partial(_answer, command) for command in given], seen)


def _answer(command: Command, state: State, seen: Observation) -> Step[State]:
    """Apply one command, and answer it."""
    done, refusal = _try(command, state, seen)
    answer = CommandReply(number=command.number, refused=refusal, text=done.text, gpus=done.gpus)
    return done.step._replace(actions=(*done.step.actions, SendTo(role=Role.API, message=answer)))


def _try(command: Command, state: State, seen: Observation) -> tuple[Accepted, Refusal | None]:
    """Apply one command, or report why it is refused; the API process reports its own commands."""
    if state.shutdown is not None:
        text, refusal = f"sentinel is shutting down: {state.shutdown.reason}", Refusal.ENDING
        if isinstance(command, StopDaemon) and command.restart == state.restart:
            return Accepted(Step(state), text, tuple(state.gpu_states)), None  # as asked
    else:
        try:
            return _APPLY[type(command)](state, command, seen), None
        except RefusedError as error:
            text, refusal = str(error), error.refusal
        except ConfigError as error:
            text, refusal = str(error), Refusal.INVALID
    if command.by.via == "sentinel" or isinstance(command, Extend):
        return Accepted(Step(state), text), refusal
    fields = {"command": _words(command), "reason": text, "by": caller_fields(command.by)}
    event = Event(name="command.rejected", at=seen.now, fields=fields)
    return Accepted(Step(state, events=(event,)), text), refusal


def _words(command: Command) -> str:
    """Return the name of a command in words: `PauseGpus` is `pause gpus`."""
    if isinstance(command, CancelGrant):
        return f"cancel {command.kind}"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(command).__name__).lower()


def expire_pauses(state: State, seen: Observation) -> Step[State]:
    """End expired pauses and releases."""
    now = seen.now
    step = each_gpu(state, seen, _expire_pause)
    released = state.driver_released
    if released is None or released.until is None:
        return step
    if now < released.until:
        return step._replace(due=min(step.due, released.until))
    event = Event(name="driver.acquire_requested", at=now, fields={"by": None})
    return step._replace(
        state=replace(step.state, driver_released=None), events=(*step.events, event)
    )


def _expire_pause(gpu_state: GpuState, seen: Observation, _: Config) -> Step[GpuState]:
    pause, now = gpu_state.pause, seen.now
    if pause is None or pause.until is None:
        return Step(gpu_state)
    if now < pause.until:
        return Step(gpu_state, due=pause.until)
    event = gpu_event("gpu.resumed", gpu_state, now, by=None)
    return Step(_resumed(gpu_state, now), events=(event,))


def _resumed(gpu_state: GpuState, now: float) -> GpuState:
    """End the pause of a GPU, if it has one."""
    return gpu_state if gpu_state.pause is None else replace(gpu_state, pause=None, resumed=now)


# --- the daemon, and pauses of its GPUs --------------------------------------------------------


def _stop(state: State, command: StopDaemon, seen: Observation) -> Accepted:
    text = "the daemon ends as soon as all GPUs are free"
    reason = f"{'a restart, ' if command.restart else ''}requested by {command.by}"
    if command.by.via == "sentinel":
        reason = "no client can reach it any more"
    state, gpus = replace(state, restart=command.restart), tuple(state.gpu_states)
    return Accepted(daemon.begin(state, reason, seen), text, gpus)


def _pause(state: State, command: PauseGpus, seen: Observation) -> Accepted:
    now = seen.now
    check_gpus(state, command.gpus)
    check_seconds(command.seconds)
    if command.release and command.gpus:
        text = "the driver is released for all GPUs at once; name none"
        raise RefusedError(Refusal.INVALID, text)
    gpus = command.gpus or tuple(state.gpu_states)
    _check_pauser(state, command.by, gpus, release=command.release)
    until = None if command.seconds is None else now + command.seconds
    pause = Pause(since=now, until=until, by=command.by)
    fields = {"for_s": command.seconds, "by": caller_fields(command.by)}
    end = "until `sentinel resume`"
    if command.seconds is not None:
        end = f"for {format_duration(command.seconds)}, or {end}"
    if command.release:
        event = Event(name="driver.release_requested", at=now, fields=fields)
        state, text = (
            replace(state, driver_released=pause),
            f"released the driver of all GPUs {end}",
        )
        return Accepted(Step(state, events=(event,)), text, gpus)
    state = state.change_gpus(lambda gpu_state: replace(gpu_state, pause=pause), gpus)
    events = [gpu_event("gpu.paused", state.gpu_states[uuid], now, **fields) for uuid in gpus]
    text = f"paused {names_of(state, gpus)} {end}"
    return Accepted(Step(state, events=tuple(events)), text, gpus)


def _resume(state: State, command: ResumeGpus, seen: Observation) -> Accepted:
    now = seen.now
    if state.config.dry_run and state.orders.paused:
        text = "this sentinel only watches (--monitor) and occupies nothing"
        raise RefusedError(Refusal.CONFLICT, text)
    check_gpus(state, command.gpus)
    if state.driver_released is not None and command.gpus:
        text = "the driver is released for all GPUs; resume all of them"
        raise RefusedError(Refusal.INVALID, text)
    gpus = command.gpus or tuple(state.gpu_states)
    _check_pauser(state, command.by, gpus, release=state.driver_released is not None)
    by = caller_fields(command.by)
    events = []
    if state.driver_released is not None:
        events.append(Event(name="driver.acquire_requested", at=now, fields={"by": by}))
    paused = [uuid for uuid in gpus if state.gpu_states[uuid].pause is not None]
    events += [gpu_event("gpu.resumed", state.gpu_states[uuid], now, by=by) for uuid in paused]
    text = _describe_resumption(state, gpus, paused)
    state = state.change_gpus(lambda found: _resumed(reset_failures(found), now), gpus)
    step = Step(replace(state, driver_released=None), events=tuple(events))
    return Accepted(step, text, gpus)


def _describe_resumption(state: State, gpus: Sequence[str], paused: Sequence[str]) -> str:
    """Describe which of some GPUs are resumed: those that are paused, or not tried any more."""
    if state.driver_released is not None:
        paused = gpus
    states, failed = state.gpu_states, (Fatal, Backoff)
    resumed = [one for one in gpus if one in paused or isinstance(states[one].stressor, failed)]
    others = tuple(uuid for uuid in gpus if uuid not in resumed)
    verb = "was" if len(others) == 1 else "were"
    texts = [f"resumed {names_of(state, tuple(resumed))}"] if resumed else []
    texts += [f"{names_of(state, others)} {verb} not paused"] if others else []
    return "; ".join(texts)


def _check_pauser(state: State, by: Caller, gpus: tuple[str, ...], *, release: bool) -> None:
    """Refuse to change another user's pause, or to release the driver that all GPUs need."""
    if release and by.level < Level.ADMINISTER:
        text = "the driver of all GPUs is released and acquired by administrators only"
        raise RefusedError(Refusal.FORBIDDEN, text)
    for uuid in gpus:
        gpu_state = state.gpu_states[uuid]
        if gpu_state.pause is not None:
            check_owner(by, gpu_state.pause.by, f"the pause of GPU {gpu_state.gpu.index}")


def _acknowledge(state: State, command: AcknowledgeResults, seen: Observation) -> Accepted:
    """Report an acknowledgement, and judge the GPU without the findings that it is about."""
    fields = {
        "reason": command.reason,
        "errors": command.errors,
        "findings": command.findings,
        "outcome": command.outcome,
        "by": caller_fields(command.by),
    }
    event = Event(name="gpu.results_acknowledged", at=seen.now, gpu=command.gpu, fields=fields)
    gpu_state = state.gpu_states.get(command.gpu)
    if gpu_state is not None:  # its results are acknowledged also if it is missing
        known = min(command.counted, gpu_state.findings.total)
        findings = replace(gpu_state.findings, acknowledged=known)
        gpu_state = faults.acknowledged(replace(gpu_state, findings=findings))
        state = state.with_gpu(gpu_state)
    elsewhere = (
        replace(before, xids=()) if before.gpu.uuid == command.gpu else before
        for before in state.faults_elsewhere
    )
    state = replace(state, faults_elsewhere=tuple(filter(faults.describe, elsewhere)))
    text = "acknowledged wrong results"
    return Accepted(Step(state, events=(event,)), text, (command.gpu,))


# --- settings --------------------------------------------------------------------------------


def _configure(state: State, command: Configure, seen: Observation) -> Accepted:
    """Apply new settings completely, or none of them."""
    if (locked := burnin.why_locked(state)) is not None:
        raise RefusedError(Refusal.CONFLICT, locked)
    before, now = state.config, seen.now
    new = burnin.kept(build_config(command.given), before)
    gpus = tuple(gpu_state.gpu for gpu_state in state.gpu_states.values())
    new, unused = resolve(new, command.given, gpus)
    new = lay_settings(replace(state, config=new)).config
    fixed = [key for name, key in _FIXED.items() if getattr(new, name) != getattr(before, name)]
    if fixed:
        text = f"{fixed[0]} takes effect only at a start"
        raise RefusedError(Refusal.INVALID, text)
    if new.until is not None:
        if seen.local is None:
            raise RefusedError(Refusal.CONFLICT, "the wall-clock time is unknown")
        new = replace(new, until=first_after(new.until, seen.local))
    new = replace(new, dry_run=before.dry_run)
    fields = {
        "by": caller_fields(command.by),
        "workload": new.workload,
        "changed": command.changed,
    }
    events = [Event(name="sentinel.configured", at=now, fields=fields)]
    events += [
        Event(name="config.unused", at=now, fields={"source": value.source}) for value in unused
    ]
    begun = now if new.run_for != before.run_for else state.counted_from
    due = min(state.next_status, now + new.status_every)
    state = replace(state, reconfigured=True, counted_from=begun, next_status=due)
    state = state.change_gpus(reset_failures).with_config(new)
    released = tuple(uuid for uuid in state.gpu_states if uuid in starts.node_releases(state, seen))
    text = "the settings were applied"
    text += f"; releasing {names_of(state, released)}" if released else ""
    return Accepted(Step(state, events=tuple(events)), text, released)


#: What applies each command; it raises RefusedError or ConfigError for one that it refuses.
_APPLY: Mapping[type[Command], Callable[[State, Any, Observation], Accepted]] = {
    StopDaemon: _stop,
    PauseGpus: _pause,
    ResumeGpus: _resume,
    AcknowledgeResults: _acknowledge,
    Configure: _configure,
    StartSession: sessions.start,
    EndSession: sessions.end,
    **burnin.APPLY,
    Reserve: grants.reserve,
    Allocate: grants.allocate,
    Extend: grants.extend,
    CancelGrant: grants.cancel,
}
