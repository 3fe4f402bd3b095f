"""Carries out what clients ask for: folds each order into the state, and answers it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentinel.config.build import Given, Override, build_config, resolve
from sentinel.config.model import SETTINGS, Config
from sentinel.config.schedule import first_after
from sentinel.config.setting import Scope
from sentinel.core.actions import Action, Event, Reply
from sentinel.core.events import gpu_event
from sentinel.core.gpu import health
from sentinel.core.node import allocation_commands
from sentinel.core.node.admin import reservation_of
from sentinel.core.node.command_result import (
    CommandResult,
    caller,
    names_of,
    wrong_gpus,
    wrong_seconds,
)
from sentinel.core.observation import Observation
from sentinel.core.state import (
    Backoff,
    Busy,
    Fatal,
    GpuState,
    Idle,
    Paused,
    State,
    Stopped,
    Unknown,
)
from sentinel.errors import ConfigError
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import (
    Allocate,
    Command,
    CommandReply,
    Configure,
    Confirm,
    Deallocate,
    Drain,
    GivenOverride,
    GivenSetting,
    PauseGpus,
    Refusal,
    Reserve,
    Resume,
    ResumeGpus,
    ShutDown,
    Unreserve,
)
from sentinel.protocol.views import Reservation

#: How many reservations there may be at once, and characters of a reason.
_MOST_RESERVATIONS = 256
_LONGEST_REASON = 200
#: So many allocations are named that are in the way.
_NAMED = 10

#: What is settled when the daemon begins: the probe was told, locks were taken, sockets are open.
_SETTLED = {setting.field: setting.key for setting in SETTINGS if setting.scope is Scope.START}


@dataclass(frozen=True, kw_only=True)
class CommandBatch:
    """What orders led to; ``stop`` is why to end, where one of them says so."""

    state: State
    config: Config
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    stop: str | None = None


def apply_commands(state: State, seen: Observation, config: Config) -> CommandBatch:
    """Return what the orders of this tick led to, one after the other, each as a whole."""
    orders = seen.service.commands if seen.service is not None else ()
    batch = CommandBatch(state=state, config=config)
    for order in orders:
        done = _carry_out(batch.state, order, seen, batch.config)
        answer = CommandReply(
            number=order.number, refused=done.refused, text=done.text, gpus=done.gpus
        )
        events = done.events
        if done.refused is not None and order.by.via == "service":
            events = []  # of its own accord: it says itself what matters of that
        elif done.refused is not None:
            name = type(order).__name__.lower()
            fields = {"order": name, "reason": done.text, "by": caller(order.by)}
            events = [Event(name="command.rejected", at=seen.now, fields=fields)]
        batch = CommandBatch(
            state=done.state,
            config=done.config or batch.config,
            actions=(*batch.actions, Reply(answer=answer)),
            events=(*batch.events, *events),
            stop=done.stop or batch.stop,
        )
    return batch


def expire(state: State, now: float) -> tuple[State, list[Event]]:
    """End the pauses and reservations whose time is over."""
    events = []
    gpu_states = dict(state.gpu_states)
    for uuid, gpu_state in state.gpu_states.items():
        if gpu_state.paused is not None and _is_over(gpu_state.paused.until, now):
            gpu_states[uuid] = replace(gpu_state, paused=None)
            events.append(gpu_event("gpu.resumed", gpu_state, now, by=None))
    released = state.released
    if released is not None and _is_over(released.until, now):
        released = None
        events.append(Event(name="driver.acquire_requested", at=now, fields={"by": None}))
    over = [one for one in state.reservations.values() if _is_over(one.until, now)]
    state = replace(state, gpu_states=gpu_states, released=released)
    for reservation in over:
        state, said = _end_reservation(state, reservation, None, now)
        events += said
    return state, events


def deadlines(state: State) -> list[float]:
    """Return when something that somebody asked for is over."""
    untils = [
        gpu_state.paused.until
        for gpu_state in state.gpu_states.values()
        if gpu_state.paused is not None
    ]
    untils += [reservation.until for reservation in state.reservations.values()]
    untils += [state.released.until] if state.released is not None else []
    return [until for until in untils if until is not None]


def _is_over(until: float | None, now: float) -> bool:
    return until is not None and now >= until


def _carry_out(state: State, order: Command, seen: Observation, config: Config) -> CommandResult:
    if state.shutdown is not None:
        reason = f"sentinel is ending: {state.shutdown.reason}"
        return CommandResult(state, reason, refused=Refusal.ENDING)
    match order:
        case PauseGpus():
            return _pause(state, order, seen.now)
        case ResumeGpus():
            return _resume(state, order, seen.now)
        case Reserve():
            return _reserve(state, order, seen.now)
        case Confirm(allocation=True) | Allocate() | Deallocate():
            return allocation_commands.apply_commands(state, order, seen, config)
        case Confirm() | Unreserve():
            return _decide_on(state, order, seen.now)
        case Configure():
            return _configure(state, order, seen, config)
        case Resume() | Drain() | ShutDown():
            return _change_all(state, order, seen.now, config)


# --- all of it -------------------------------------------------------------------------------


def _change_all(
    state: State, order: Resume | Drain | ShutDown, now: float, config: Config
) -> CommandResult:
    gpus, by = tuple(state.gpu_states), order.by
    match order:
        case Resume() if config.dry_run:
            text = "this sentinel only watches (--monitor), and occupies nothing"
            return CommandResult(state, text, refused=Refusal.CONFLICT)
        case Resume():
            gpu_states = {
                uuid: _given_another_chance(gpu_state)
                for uuid, gpu_state in state.gpu_states.items()
            }
            event = Event(name="sentinel.occupying", at=now, fields={"by": caller(by)})
            state = replace(state, gpu_states=gpu_states, occupying=True)
            return CommandResult(state, "occupies idle GPUs", gpus, events=[event])
        case Drain():
            event = Event(name="sentinel.drained", at=now, fields={"by": caller(by)})
            state = replace(state, occupying=False)
            return CommandResult(state, "lets go of every GPU", gpus, events=[event])
        case ShutDown():
            who = f"uid {by.uid}" if by.uid is not None else f"a client over {by.via}"
            reason = "no client can find it any more" if by.via == "service" else f"asked by {who}"
            return CommandResult(state, "lets go of every GPU and ends", gpus, stop=reason)


def _given_another_chance(gpu_state: GpuState) -> GpuState:
    """Forget why no stressor may run on a GPU, since somebody asks for one by hand."""
    if isinstance(gpu_state.stressor, Fatal | Backoff):
        return replace(gpu_state, stressor=Stopped(), failures=(), streak=0)
    return gpu_state


# --- pauses ----------------------------------------------------------------------------------


def _pause(state: State, order: PauseGpus, now: float) -> CommandResult:
    wrong = wrong_gpus(state, order.gpus) or wrong_seconds(state, order.seconds)
    if wrong is not None:
        return wrong
    if order.release and order.gpus:
        text = "the driver is let go of for all GPUs at once; name none with it"
        return CommandResult(state, text, refused=Refusal.INVALID)
    paused = Paused(since=now, until=None if order.seconds is None else now + order.seconds)
    fields = {"for_s": order.seconds, "by": caller(order.by)}
    if order.release:
        event = Event(name="driver.release_requested", at=now, fields=fields)
        state = replace(state, released=paused)
        return CommandResult(
            state, "lets go of every GPU and of the driver", tuple(state.gpu_states), None, [event]
        )
    gpus = order.gpus or tuple(state.gpu_states)
    gpu_states = dict(state.gpu_states)
    events = []
    for uuid in gpus:
        gpu_states[uuid] = replace(gpu_states[uuid], paused=paused)
        events.append(gpu_event("gpu.paused", gpu_states[uuid], now, **fields))
    return CommandResult(
        replace(state, gpu_states=gpu_states),
        f"keeps off {names_of(state, gpus)}",
        gpus,
        None,
        events,
    )


def _resume(state: State, order: ResumeGpus, now: float) -> CommandResult:
    wrong = wrong_gpus(state, order.gpus)
    if wrong is not None:
        return wrong
    if state.released is not None and order.gpus:
        text = "the driver was let go of for all GPUs; resume all of them"
        return CommandResult(state, text, refused=Refusal.INVALID)
    by = caller(order.by)
    events = []
    if state.released is not None:
        events.append(Event(name="driver.acquire_requested", at=now, fields={"by": by}))
    gpus = order.gpus or tuple(state.gpu_states)
    gpu_states = dict(state.gpu_states)
    for uuid in gpus:
        if gpu_states[uuid].paused is not None:
            events.append(gpu_event("gpu.resumed", gpu_states[uuid], now, by=by))
        gpu_states[uuid] = replace(_given_another_chance(gpu_states[uuid]), paused=None)
    state = replace(state, gpu_states=gpu_states, released=None)
    return CommandResult(state, f"cares for {names_of(state, gpus)} again", gpus, None, events)


# --- reservations ----------------------------------------------------------------------------


def _reserve(state: State, order: Reserve, now: float) -> CommandResult:
    wrong = wrong_gpus(state, order.gpus) or wrong_seconds(state, order.seconds)
    wrong = wrong or _wrong_reservation(state, order)
    if wrong is not None:
        return wrong
    blocked = [_why_not(state, state.gpu_states[uuid]) for uuid in order.gpus or state.gpu_states]
    if order.gpus:
        why = "; ".join(reason for reason in blocked if reason is not None)
        if why:
            return CommandResult(state, why, refused=Refusal.CONFLICT)
        gpus = order.gpus
    else:
        free = [
            gpu_state
            for gpu_state in state.gpu_states.values()
            if _why_not(state, gpu_state) is None
        ]
        if len(free) < order.count:
            why = "; ".join(reason for reason in blocked if reason is not None)
            text = f"{len(free)} of {order.count} GPUs can be had: {why}"
            return CommandResult(state, text, refused=Refusal.CONFLICT)
        free.sort(key=_had_less_easily)
        gpus = tuple(gpu_state.gpu.uuid for gpu_state in free[: order.count])
    reservation = Reservation(
        id=order.id,
        gpus=gpus,
        reason=order.reason,
        by=order.by,
        since=now,
        until=None if order.seconds is None else now + order.seconds,
        bound=order.bound,
    )
    state = replace(state, reservations={**state.reservations, order.id: reservation})
    fields = {
        "id": order.id,
        "reason": order.reason,
        "for_s": order.seconds,
        "bound": order.bound,
        "by": caller(order.by),
    }
    events = [gpu_event("gpu.reserved", state.gpu_states[uuid], now, **fields) for uuid in gpus]
    return CommandResult(state, f"reserved {names_of(state, gpus)}", gpus, None, events)


def _had_less_easily(gpu_state: GpuState) -> tuple[float, bool, int]:
    """Return by what GPUs are chosen: those that are cool, free already, and come first."""
    held = not isinstance(gpu_state.stressor, Stopped)
    return -health.multiplier(gpu_state), held, gpu_state.gpu.index


def _wrong_reservation(state: State, order: Reserve) -> CommandResult | None:
    """Return what is wrong with what was asked for, if anything is."""
    by = order.by
    wrong = None
    if not order.id or order.id in state.reservations:
        return CommandResult(
            state, f"there is a reservation {order.id!r}", refused=Refusal.CONFLICT
        )
    if len(state.reservations) >= _MOST_RESERVATIONS:
        text = f"there are {len(state.reservations)} reservations already"
        return CommandResult(state, text, refused=Refusal.CONFLICT)
    if bool(order.gpus) == bool(order.count) or order.count < 0:
        wrong = "either GPUs or how many of them are to be named"
    elif len(set(order.gpus)) != len(order.gpus):
        wrong = "a GPU is named twice"
    elif order.count > len(state.gpu_states):
        wrong = f"{order.count} GPUs are asked for, and there are {len(state.gpu_states)}"
    elif len(order.reason) > _LONGEST_REASON or not order.reason.isprintable():
        wrong = f"a reason is one line of at most {_LONGEST_REASON} characters"
    elif order.bound and (by.pid is None or by.started is None):
        wrong = "who asks cannot be seen from here, so nothing can be bound to it; say how long"
    return None if wrong is None else CommandResult(state, wrong, refused=Refusal.INVALID)


def _why_not(state: State, gpu_state: GpuState) -> str | None:
    """Return why a GPU cannot be reserved now, or ``None`` where it can."""
    name = f"GPU {gpu_state.gpu.index}"
    reserved = reservation_of(state, gpu_state.gpu.uuid)
    if reserved is not None:
        return f"{name} is reserved: {reserved.reason} ({reserved.id})"
    if gpu_state.allocations:
        return f"memory of {name} is allocated: {', '.join(sorted(gpu_state.allocations)[:_NAMED])}"
    match gpu_state.occupancy:
        case Idle():
            return None
        case Busy(reason=reason, processes=by):
            who = ", ".join(f"{process.name or 'a process'} (pid {process.pid})" for process in by)
            return f"{name} is {reason}{': ' if who else ''}{who}"
        case Unknown(reason=reason):
            return f"{name} is unknown: {reason}"


def forget_unconfirmed(state: State, now: float) -> tuple[State, list[Event]]:
    """End the reservations of which nobody will hear: the service that made them is gone."""
    events: list[Event] = []
    for reservation in tuple(state.reservations.values()):
        if not reservation.confirmed:
            state, said = _end_reservation(state, reservation, Caller(via="service"), now)
            events += said
    return state, events


def _decide_on(state: State, order: Confirm | Unreserve, now: float) -> CommandResult:
    """Keep or end a reservation."""
    reservation = state.reservations.get(order.id)
    if reservation is None:
        known = ", ".join(sorted(state.reservations)) or "none"
        text = f"there is no reservation {order.id!r}; there are: {known}"
        return CommandResult(state, text, refused=Refusal.NOT_FOUND)
    if isinstance(order, Confirm):
        kept = {**state.reservations, order.id: replace(reservation, confirmed=True)}
        state = replace(state, reservations=kept)
        return CommandResult(state, f"reservation {order.id} holds", reservation.gpus)
    state, events = _end_reservation(state, reservation, order.by, now)
    return CommandResult(state, f"reservation {order.id} is over", reservation.gpus, events=events)


def _end_reservation(
    state: State, reservation: Reservation, by: Caller | None, now: float
) -> tuple[State, list[Event]]:
    """Return the state without it; ``by`` is ``None`` where its time is over."""
    left = {id_: one for id_, one in state.reservations.items() if id_ != reservation.id}
    fields = {"id": reservation.id, "by": None if by is None else caller(by)}
    events = [
        gpu_event("gpu.unreserved", state.gpu_states[uuid], now, **fields)
        for uuid in reservation.gpus
        if uuid in state.gpu_states
    ]
    return replace(state, reservations=left), events


# --- settings --------------------------------------------------------------------------------


def _configure(state: State, order: Configure, seen: Observation, config: Config) -> CommandResult:
    """Take over new settings as a whole, or none of them."""
    try:
        new = build_config(_given(order.given), [_override(one) for one in order.overrides])
        overrides = [_override(one) for one in order.overrides]
        gpus = tuple(gpu_state.gpu for gpu_state in state.gpu_states.values())
        new, unused = resolve(new, overrides, gpus)
    except ConfigError as error:
        return CommandResult(state, str(error), refused=Refusal.INVALID)
    settled = [key for name, key in _SETTLED.items() if getattr(new, name) != getattr(config, name)]
    if settled:
        text = f"{settled[0]} is settled when sentinel begins: shut it down and start it"
        return CommandResult(state, text, refused=Refusal.INVALID)
    if new.until is not None:
        if seen.local is None:
            return CommandResult(state, "what time it is is not known", refused=Refusal.CONFLICT)
        new = replace(new, until=first_after(new.until, seen.local))
    new = replace(new, dry_run=config.dry_run, explain=config.explain)
    fields = {"by": caller(order.by), "workload": new.workload}
    events = [Event(name="sentinel.configured", at=seen.now, fields=fields)]
    events += [
        Event(name="config.unused", at=seen.now, fields={"source": override.source})
        for override in unused
    ]
    gpu_states = {
        uuid: _given_another_chance(gpu_state) for uuid, gpu_state in state.gpu_states.items()
    }
    begun = seen.now if new.run_for != config.run_for else state.counted_from
    state = replace(state, gpu_states=gpu_states, reconfigured=True, counted_from=begun)
    return CommandResult(state, "the settings were taken over", (), None, events, config=new)


def _given(values: tuple[GivenSetting, ...]) -> dict[str, Given]:
    return {value.key: Given(text=value.text, source=value.source) for value in values}


def _override(values: GivenOverride) -> Override:
    given = _given(values.given)
    return Override(selector=values.selector, source=values.source, given=given)
