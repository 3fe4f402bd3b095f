"""Apply the commands of clients to the state, and answer them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from sentinel.config.build import build_config, resolve
from sentinel.config.model import SETTINGS, Config
from sentinel.config.schedule import first_after
from sentinel.config.setting import Scope
from sentinel.core.actions import Action, Event, Reply
from sentinel.core.events import gpu_event
from sentinel.core.gpu_state import Pause
from sentinel.core.node import (
    allocation_commands,
    burnin_commands,
    reservations,
    sessions,
)
from sentinel.core.node.backoff import reset_failures
from sentinel.core.node.command_result import (
    CommandResult,
    caller_fields,
    names_of,
    not_owner,
    wrong_gpus,
    wrong_seconds,
)
from sentinel.core.observation import Observation
from sentinel.core.state import State
from sentinel.errors import ConfigError
from sentinel.protocol.caller import Caller, Level
from sentinel.protocol.commands import (
    AcknowledgeResults,
    Allocate,
    CancelBurnin,
    Command,
    CommandReply,
    Configure,
    Deallocate,
    Drain,
    EndSession,
    Extend,
    PauseGpus,
    Refusal,
    Reserve,
    Resume,
    ResumeGpus,
    ShutDown,
    StartBurnin,
    StartSession,
    Unreserve,
)

#: Settings that are fixed at the start of the daemon: its probe, locks and sockets depend on them.
_FIXED = {setting.field: setting.key for setting in SETTINGS if setting.scope is Scope.START}


@dataclass(frozen=True, kw_only=True)
class CommandBatch:
    """The result of all commands of one tick."""

    state: State
    config: Config
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    #: The reason for a shutdown, or None.
    stop: str | None = None


def apply_commands(state: State, seen: Observation, config: Config) -> CommandBatch:
    """End expired sessions; apply the commands of this tick, each completely or not at all."""
    given = seen.api.commands if seen.api is not None else ()
    state, config, expired = sessions.expire(state, seen.now, config)
    batch = CommandBatch(state=state, config=config, events=tuple(expired))
    for command in given:
        done = _apply(batch.state, command, seen, batch.config)
        answer = CommandReply(
            number=command.number, refused=done.refused, text=done.text, gpus=done.gpus
        )
        events = done.events
        if done.refused is not None and command.by.via == "sentinel":
            events = []  # the API process reports its own commands
        elif done.refused is not None:
            fields = {
                "command": _words(type(command).__name__),
                "reason": done.text,
                "by": caller_fields(command.by),
            }
            events = [Event(name="command.rejected", at=seen.now, fields=fields)]
        batch = CommandBatch(
            state=done.state,
            config=done.config or batch.config,
            actions=(*batch.actions, Reply(answer=answer)),
            events=(*batch.events, *events),
            stop=done.stop or batch.stop,
        )
    return batch


def _words(name: str) -> str:
    """Return the name of a command in words: `PauseGpus` is `pause gpus`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def expire(state: State, now: float) -> tuple[State, list[Event]]:
    """End expired pauses, releases, reservations and allocations."""
    events = []
    gpu_states = dict(state.gpu_states)
    for uuid, gpu_state in state.gpu_states.items():
        if gpu_state.pause is not None and _is_expired(gpu_state.pause.until, now):
            gpu_states[uuid] = replace(gpu_state, pause=None)
            events.append(gpu_event("gpu.resumed", gpu_state, now, by=None))
    state = state.with_gpu_states(gpu_states)
    if state.released is not None and _is_expired(state.released.until, now):
        state = replace(state, released=None)
        events.append(Event(name="driver.acquire_requested", at=now, fields={"by": None}))
    state, unreserved = reservations.expire(state, now)
    state, deallocated = allocation_commands.expire(state, now)
    return state, [*events, *unreserved, *deallocated]


def deadlines(state: State) -> list[float]:
    """Compute when pauses, reservations, allocations, sessions and the release expire."""
    untils = [
        gpu_state.pause.until
        for gpu_state in state.gpu_states.values()
        if gpu_state.pause is not None
    ]
    untils += [session.until for session in state.sessions.values()]
    untils += [*reservations.deadlines(state), *allocation_commands.deadlines(state)]
    untils += [state.released.until] if state.released is not None else []
    return [until for until in untils if until is not None]


def _is_expired(until: float | None, now: float) -> bool:
    return until is not None and now >= until


def _apply(state: State, command: Command, seen: Observation, config: Config) -> CommandResult:
    if state.shutdown is not None:
        reason = f"sentinel is shutting down: {state.shutdown.reason}"
        return CommandResult(state, reason, refused=Refusal.ENDING)
    match command:
        case PauseGpus() | ResumeGpus() | AcknowledgeResults():
            return _change_gpus(state, command, seen.now)
        case Extend(allocation=True) | Allocate() | Deallocate():
            return allocation_commands.apply_command(state, command, seen, config)
        case Reserve() | Extend() | Unreserve():
            return reservations.apply_command(state, command, seen.now)
        case Configure():
            return _configure(state, command, seen, config)
        case StartSession() | EndSession():
            return sessions.apply_command(state, command, seen.now, config)
        case StartBurnin() | CancelBurnin():
            return burnin_commands.apply_command(state, command, seen.now, config)
        case Resume() | Drain() | ShutDown():
            return _change_daemon(state, command, seen.now, config)


# --- the whole daemon ------------------------------------------------------------------------


def _change_daemon(
    state: State, command: Resume | Drain | ShutDown, now: float, config: Config
) -> CommandResult:
    gpus, by = tuple(state.gpu_states), command.by
    match command:
        case Resume() if config.dry_run:
            text = "this sentinel only watches (--monitor) and occupies nothing"
            return CommandResult(state, text, refused=Refusal.CONFLICT)
        case Resume():
            gpu_states = {
                uuid: reset_failures(gpu_state) for uuid, gpu_state in state.gpu_states.items()
            }
            event = Event(name="sentinel.occupying", at=now, fields={"by": caller_fields(by)})
            state = replace(state, gpu_states=gpu_states, occupying=True)
            return CommandResult(state, "occupies idle GPUs", gpus, events=[event])
        case Drain():
            event = Event(name="sentinel.drained", at=now, fields={"by": caller_fields(by)})
            state = replace(state, occupying=False)
            return CommandResult(state, "releases every GPU", gpus, events=[event])
        case ShutDown():
            reason = f"requested by {by}"
            if by.via == "sentinel":
                reason = "no client can reach it any more"
            return CommandResult(state, "releases every GPU and shuts down", gpus, stop=reason)


# --- single GPUs -----------------------------------------------------------------------------


def _change_gpus(
    state: State, command: PauseGpus | ResumeGpus | AcknowledgeResults, now: float
) -> CommandResult:
    match command:
        case PauseGpus():
            return _pause(state, command, now)
        case ResumeGpus():
            return _resume(state, command, now)
        case AcknowledgeResults():
            return _acknowledge(state, command, now)


def _pause(state: State, command: PauseGpus, now: float) -> CommandResult:
    wrong = wrong_gpus(state, command.gpus) or wrong_seconds(state, command.seconds)
    if wrong is not None:
        return wrong
    if command.release and command.gpus:
        text = "the driver is released for all GPUs at once; name none"
        return CommandResult(state, text, refused=Refusal.INVALID)
    gpus = command.gpus or tuple(state.gpu_states)
    refused = _not_pauser(state, command.by, gpus, release=command.release)
    if refused is not None:
        return refused
    until = None if command.seconds is None else now + command.seconds
    pause = Pause(since=now, until=until, by=command.by)
    fields = {"for_s": command.seconds, "by": caller_fields(command.by)}
    if command.release:
        event = Event(name="driver.release_requested", at=now, fields=fields)
        state = replace(state, released=pause)
        return CommandResult(
            state, "releases every GPU and the driver", tuple(state.gpu_states), None, [event]
        )
    gpu_states = dict(state.gpu_states)
    events = []
    for uuid in gpus:
        gpu_states[uuid] = replace(gpu_states[uuid], pause=pause)
        events.append(gpu_event("gpu.paused", gpu_states[uuid], now, **fields))
    return CommandResult(
        replace(state, gpu_states=gpu_states),
        f"pauses {names_of(state, gpus)}",
        gpus,
        None,
        events,
    )


def _resume(state: State, command: ResumeGpus, now: float) -> CommandResult:
    wrong = wrong_gpus(state, command.gpus)
    if wrong is not None:
        return wrong
    if state.released is not None and command.gpus:
        text = "the driver is released for all GPUs; resume all of them"
        return CommandResult(state, text, refused=Refusal.INVALID)
    gpus = command.gpus or tuple(state.gpu_states)
    refused = _not_pauser(state, command.by, gpus, release=state.released is not None)
    if refused is not None:
        return refused
    by = caller_fields(command.by)
    events = []
    if state.released is not None:
        events.append(Event(name="driver.acquire_requested", at=now, fields={"by": by}))
    gpu_states = dict(state.gpu_states)
    for uuid in gpus:
        if gpu_states[uuid].pause is not None:
            events.append(gpu_event("gpu.resumed", gpu_states[uuid], now, by=by))
        gpu_states[uuid] = replace(reset_failures(gpu_states[uuid]), pause=None)
    state = replace(state, gpu_states=gpu_states, released=None)
    return CommandResult(state, f"resumes {names_of(state, gpus)}", gpus, None, events)


def _not_pauser(
    state: State, by: Caller, gpus: tuple[str, ...], *, release: bool
) -> CommandResult | None:
    """Refuse to change another user's pause, or to release the driver that all GPUs need."""
    if release and by.level < Level.ADMINISTER:
        text = "the driver of all GPUs is released and acquired by administrators only"
        return CommandResult(state, text, refused=Refusal.FORBIDDEN)
    for uuid in gpus:
        gpu_state = state.gpu_states[uuid]
        if gpu_state.pause is not None:
            what = f"the pause of GPU {gpu_state.gpu.index}"
            refused = not_owner(state, by, gpu_state.pause.by, what)
            if refused is not None:
                return refused
    return None


def _acknowledge(state: State, command: AcknowledgeResults, now: float) -> CommandResult:
    """Report an acknowledgement, and judge the GPU without the findings that it is about."""
    fields = {
        "reason": command.reason,
        "errors": command.errors,
        "findings": command.findings,
        "by": caller_fields(command.by),
    }
    event = Event(name="gpu.results_acknowledged", at=now, gpu=command.gpu, fields=fields)
    gpu_state = state.gpu_states.get(command.gpu)
    if gpu_state is not None:  # its results are acknowledged also if it is missing
        known = min(command.counted, gpu_state.findings.total)
        findings = replace(gpu_state.findings, acknowledged=known)
        gpu_states = {**state.gpu_states, command.gpu: replace(gpu_state, findings=findings)}
        state = state.with_gpu_states(gpu_states)
    return CommandResult(state, "acknowledges wrong results", (command.gpu,), events=[event])


# --- settings --------------------------------------------------------------------------------


def _configure(
    state: State, command: Configure, seen: Observation, config: Config
) -> CommandResult:
    """Apply new settings completely, or none of them."""
    if state.burnin_run is not None:
        text = "a burn-in runs with the present settings: cancel it first (sentinel burnin cancel)"
        return CommandResult(state, text, refused=Refusal.CONFLICT)
    try:
        new = build_config(command.given)
        new = replace(new, plan=config.plan, repeat=config.repeat)
        gpus = tuple(gpu_state.gpu for gpu_state in state.gpu_states.values())
        new, unused = resolve(new, command.given, gpus)
        state, new = sessions.lay(state, new)
    except ConfigError as error:
        return CommandResult(state, str(error), refused=Refusal.INVALID)
    fixed = [key for name, key in _FIXED.items() if getattr(new, name) != getattr(config, name)]
    if fixed:
        text = f"{fixed[0]} is fixed while sentinel runs: shut it down and start it"
        return CommandResult(state, text, refused=Refusal.INVALID)
    if new.until is not None:
        if seen.local is None:
            return CommandResult(state, "the wall-clock time is unknown", refused=Refusal.CONFLICT)
        new = replace(new, until=first_after(new.until, seen.local))
    new = replace(new, dry_run=config.dry_run, explain=config.explain)
    fields = {"by": caller_fields(command.by), "workload": new.workload}
    events = [Event(name="sentinel.configured", at=seen.now, fields=fields)]
    events += [
        Event(name="config.unused", at=seen.now, fields={"source": value.source})
        for value in unused
    ]
    gpu_states = {uuid: reset_failures(gpu_state) for uuid, gpu_state in state.gpu_states.items()}
    begun = seen.now if new.run_for != config.run_for else state.counted_from
    state = replace(state, gpu_states=gpu_states, reconfigured=True, counted_from=begun)
    return CommandResult(state, "the settings were applied", (), None, events, config=new)
