"""Carries out what clients ask for: folds each order into the state, and answers it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentinel.config.model import Config, Given, Override, build_config, resolve
from sentinel.config.schedule import first_after
from sentinel.config.settings import SETTINGS
from sentinel.core.actions import Action, Event, Reply
from sentinel.core.events import slot_event
from sentinel.core.gpu import health
from sentinel.core.node import allocation_commands
from sentinel.core.node.admin import reservation_of
from sentinel.core.node.command_result import Done, asker, names_of, wrong_gpus, wrong_seconds
from sentinel.core.observation import Observation
from sentinel.core.state import Backoff, Busy, Fatal, Idle, Paused, Slot, State, Stopped, Unknown
from sentinel.errors import ConfigError
from sentinel.protocol.caller import Asker
from sentinel.protocol.commands import (
    Allocate,
    Answer,
    Configure,
    Confirm,
    Deallocate,
    Occupy,
    Order,
    OverrideValues,
    PauseGpus,
    Refusal,
    Reserve,
    ResumeGpus,
    ShutDown,
    Unreserve,
    Vacate,
    Value,
)
from sentinel.protocol.views import Reservation

#: How many reservations there may be at once, and characters of a reason.
_MOST_RESERVATIONS = 256
_LONGEST_REASON = 200
#: So many allocations are named that are in the way.
_NAMED = 10

#: What is settled when the daemon begins: the probe was told, locks were taken, sockets are open.
_SETTLED = {setting.field: setting.key for setting in SETTINGS if setting.settled}


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What orders led to; ``stop`` is why to end, where one of them says so."""

    state: State
    config: Config
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    stop: str | None = None


def carry_out(state: State, seen: Observation, config: Config) -> Carried:
    """Return what the orders of this tick led to, one after the other, each as a whole."""
    orders = seen.service.orders if seen.service is not None else ()
    carried = Carried(state=state, config=config)
    for order in orders:
        done = _carry_out(carried.state, order, seen, carried.config)
        answer = Answer(number=order.number, refused=done.refused, text=done.text, gpus=done.gpus)
        events = done.events
        if done.refused is not None and order.by.via == "service":
            events = []  # of its own accord: it says itself what matters of that
        elif done.refused is not None:
            name = type(order).__name__.lower()
            fields = {"order": name, "reason": done.text, "by": asker(order.by)}
            events = [Event(name="order.refused", at=seen.now, fields=fields)]
        carried = Carried(
            state=done.state,
            config=done.config or carried.config,
            actions=(*carried.actions, Reply(answer=answer)),
            events=(*carried.events, *events),
            stop=done.stop or carried.stop,
        )
    return carried


def expire(state: State, now: float) -> tuple[State, list[Event]]:
    """End the pauses and reservations whose time is over."""
    events = []
    slots = dict(state.slots)
    for uuid, slot in state.slots.items():
        if slot.paused is not None and _is_over(slot.paused.until, now):
            slots[uuid] = replace(slot, paused=None)
            events.append(slot_event("gpu.resumed", slot, now, by=None))
    released = state.released
    if released is not None and _is_over(released.until, now):
        released = None
        events.append(Event(name="driver.wanted", at=now, fields={"by": None}))
    over = [one for one in state.reservations.values() if _is_over(one.until, now)]
    state = replace(state, slots=slots, released=released)
    for reservation in over:
        state, said = _end_reservation(state, reservation, None, now)
        events += said
    return state, events


def deadlines(state: State) -> list[float]:
    """Return when something that somebody asked for is over."""
    untils = [slot.paused.until for slot in state.slots.values() if slot.paused is not None]
    untils += [reservation.until for reservation in state.reservations.values()]
    untils += [state.released.until] if state.released is not None else []
    return [until for until in untils if until is not None]


def _is_over(until: float | None, now: float) -> bool:
    return until is not None and now >= until


def _carry_out(state: State, order: Order, seen: Observation, config: Config) -> Done:
    if state.shutdown is not None:
        reason = f"sentinel is ending: {state.shutdown.reason}"
        return Done(state, reason, refused=Refusal.ENDING)
    match order:
        case PauseGpus():
            return _pause(state, order, seen.now)
        case ResumeGpus():
            return _resume(state, order, seen.now)
        case Reserve():
            return _reserve(state, order, seen.now)
        case Confirm(allocation=True) | Allocate() | Deallocate():
            return allocation_commands.carry_out(state, order, seen, config)
        case Confirm() | Unreserve():
            return _decide_on(state, order, seen.now)
        case Configure():
            return _configure(state, order, seen, config)
        case Occupy() | Vacate() | ShutDown():
            return _change_all(state, order, seen.now, config)


# --- all of it -------------------------------------------------------------------------------


def _change_all(
    state: State, order: Occupy | Vacate | ShutDown, now: float, config: Config
) -> Done:
    gpus, by = tuple(state.slots), order.by
    match order:
        case Occupy() if config.dry_run:
            text = "this sentinel only watches (--monitor), and occupies nothing"
            return Done(state, text, refused=Refusal.CONFLICT)
        case Occupy():
            slots = {uuid: _given_another_chance(slot) for uuid, slot in state.slots.items()}
            event = Event(name="sentinel.occupying", at=now, fields={"by": asker(by)})
            state = replace(state, slots=slots, occupying=True)
            return Done(state, "occupies idle GPUs", gpus, events=[event])
        case Vacate():
            event = Event(name="sentinel.vacated", at=now, fields={"by": asker(by)})
            state = replace(state, occupying=False)
            return Done(state, "lets go of every GPU", gpus, events=[event])
        case ShutDown():
            who = f"uid {by.uid}" if by.uid is not None else f"a client over {by.via}"
            reason = "no client can find it any more" if by.via == "service" else f"asked by {who}"
            return Done(state, "lets go of every GPU and ends", gpus, stop=reason)


def _given_another_chance(slot: Slot) -> Slot:
    """Forget why no stressor may run on a GPU, since somebody asks for one by hand."""
    if isinstance(slot.stressor, Fatal | Backoff):
        return replace(slot, stressor=Stopped(), failures=(), streak=0)
    return slot


# --- pauses ----------------------------------------------------------------------------------


def _pause(state: State, order: PauseGpus, now: float) -> Done:
    wrong = wrong_gpus(state, order.gpus) or wrong_seconds(state, order.seconds)
    if wrong is not None:
        return wrong
    if order.release and order.gpus:
        text = "the driver is let go of for all GPUs at once; name none with it"
        return Done(state, text, refused=Refusal.INVALID)
    paused = Paused(since=now, until=None if order.seconds is None else now + order.seconds)
    fields = {"for_s": order.seconds, "by": asker(order.by)}
    if order.release:
        event = Event(name="driver.unwanted", at=now, fields=fields)
        state = replace(state, released=paused)
        return Done(
            state, "lets go of every GPU and of the driver", tuple(state.slots), None, [event]
        )
    gpus = order.gpus or tuple(state.slots)
    slots = dict(state.slots)
    events = []
    for uuid in gpus:
        slots[uuid] = replace(slots[uuid], paused=paused)
        events.append(slot_event("gpu.paused", slots[uuid], now, **fields))
    return Done(
        replace(state, slots=slots), f"keeps off {names_of(state, gpus)}", gpus, None, events
    )


def _resume(state: State, order: ResumeGpus, now: float) -> Done:
    wrong = wrong_gpus(state, order.gpus)
    if wrong is not None:
        return wrong
    if state.released is not None and order.gpus:
        text = "the driver was let go of for all GPUs; resume all of them"
        return Done(state, text, refused=Refusal.INVALID)
    by = asker(order.by)
    events = []
    if state.released is not None:
        events.append(Event(name="driver.wanted", at=now, fields={"by": by}))
    gpus = order.gpus or tuple(state.slots)
    slots = dict(state.slots)
    for uuid in gpus:
        if slots[uuid].paused is not None:
            events.append(slot_event("gpu.resumed", slots[uuid], now, by=by))
        slots[uuid] = replace(_given_another_chance(slots[uuid]), paused=None)
    state = replace(state, slots=slots, released=None)
    return Done(state, f"cares for {names_of(state, gpus)} again", gpus, None, events)


# --- reservations ----------------------------------------------------------------------------


def _reserve(state: State, order: Reserve, now: float) -> Done:
    wrong = wrong_gpus(state, order.gpus) or wrong_seconds(state, order.seconds)
    wrong = wrong or _wrong_reservation(state, order)
    if wrong is not None:
        return wrong
    blocked = [_why_not(state, state.slots[uuid]) for uuid in order.gpus or state.slots]
    if order.gpus:
        why = "; ".join(reason for reason in blocked if reason is not None)
        if why:
            return Done(state, why, refused=Refusal.CONFLICT)
        gpus = order.gpus
    else:
        free = [slot for slot in state.slots.values() if _why_not(state, slot) is None]
        if len(free) < order.count:
            why = "; ".join(reason for reason in blocked if reason is not None)
            text = f"{len(free)} of {order.count} GPUs can be had: {why}"
            return Done(state, text, refused=Refusal.CONFLICT)
        free.sort(key=_had_less_easily)
        gpus = tuple(slot.gpu.uuid for slot in free[: order.count])
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
        "by": asker(order.by),
    }
    events = [slot_event("gpu.reserved", state.slots[uuid], now, **fields) for uuid in gpus]
    return Done(state, f"reserved {names_of(state, gpus)}", gpus, None, events)


def _had_less_easily(slot: Slot) -> tuple[float, bool, int]:
    """Return by what GPUs are chosen: those that are cool, free already, and come first."""
    held = not isinstance(slot.stressor, Stopped)
    return -health.multiplier(slot), held, slot.gpu.index


def _wrong_reservation(state: State, order: Reserve) -> Done | None:
    """Return what is wrong with what was asked for, if anything is."""
    by = order.by
    wrong = None
    if not order.id or order.id in state.reservations:
        return Done(state, f"there is a reservation {order.id!r}", refused=Refusal.CONFLICT)
    if len(state.reservations) >= _MOST_RESERVATIONS:
        text = f"there are {len(state.reservations)} reservations already"
        return Done(state, text, refused=Refusal.CONFLICT)
    if bool(order.gpus) == bool(order.count) or order.count < 0:
        wrong = "either GPUs or how many of them are to be named"
    elif len(set(order.gpus)) != len(order.gpus):
        wrong = "a GPU is named twice"
    elif order.count > len(state.slots):
        wrong = f"{order.count} GPUs are asked for, and there are {len(state.slots)}"
    elif len(order.reason) > _LONGEST_REASON or not order.reason.isprintable():
        wrong = f"a reason is one line of at most {_LONGEST_REASON} characters"
    elif order.bound and (by.pid is None or by.started is None):
        wrong = "who asks cannot be seen from here, so nothing can be bound to it; say how long"
    return None if wrong is None else Done(state, wrong, refused=Refusal.INVALID)


def _why_not(state: State, slot: Slot) -> str | None:
    """Return why a GPU cannot be reserved now, or ``None`` where it can."""
    name = f"GPU {slot.gpu.index}"
    reserved = reservation_of(state, slot.gpu.uuid)
    if reserved is not None:
        return f"{name} is reserved: {reserved.reason} ({reserved.id})"
    if slot.promises:
        return f"memory of {name} is allocated: {', '.join(sorted(slot.promises)[:_NAMED])}"
    match slot.occupancy:
        case Idle():
            return None
        case Busy(reason=reason, by=by):
            who = ", ".join(f"{process.name or 'a process'} (pid {process.pid})" for process in by)
            return f"{name} is {reason}{': ' if who else ''}{who}"
        case Unknown(reason=reason):
            return f"{name} is unknown: {reason}"


def forget_unconfirmed(state: State, now: float) -> tuple[State, list[Event]]:
    """End the reservations of which nobody will hear: the service that made them is gone."""
    events: list[Event] = []
    for reservation in tuple(state.reservations.values()):
        if not reservation.confirmed:
            state, said = _end_reservation(state, reservation, Asker(via="service"), now)
            events += said
    return state, events


def _decide_on(state: State, order: Confirm | Unreserve, now: float) -> Done:
    """Keep or end a reservation."""
    reservation = state.reservations.get(order.id)
    if reservation is None:
        known = ", ".join(sorted(state.reservations)) or "none"
        text = f"there is no reservation {order.id!r}; there are: {known}"
        return Done(state, text, refused=Refusal.NOT_FOUND)
    if isinstance(order, Confirm):
        kept = {**state.reservations, order.id: replace(reservation, confirmed=True)}
        state = replace(state, reservations=kept)
        return Done(state, f"reservation {order.id} holds", reservation.gpus)
    state, events = _end_reservation(state, reservation, order.by, now)
    return Done(state, f"reservation {order.id} is over", reservation.gpus, events=events)


def _end_reservation(
    state: State, reservation: Reservation, by: Asker | None, now: float
) -> tuple[State, list[Event]]:
    """Return the state without it; ``by`` is ``None`` where its time is over."""
    left = {id_: one for id_, one in state.reservations.items() if id_ != reservation.id}
    fields = {"id": reservation.id, "by": None if by is None else asker(by)}
    events = [
        slot_event("gpu.unreserved", state.slots[uuid], now, **fields)
        for uuid in reservation.gpus
        if uuid in state.slots
    ]
    return replace(state, reservations=left), events


# --- settings --------------------------------------------------------------------------------


def _configure(state: State, order: Configure, seen: Observation, config: Config) -> Done:
    """Take over new settings as a whole, or none of them."""
    try:
        new = build_config(_given(order.given), [_override(one) for one in order.overrides])
        overrides = [_override(one) for one in order.overrides]
        gpus = tuple(slot.gpu for slot in state.slots.values())
        new, unused = resolve(new, overrides, gpus)
    except ConfigError as error:
        return Done(state, str(error), refused=Refusal.INVALID)
    settled = [key for name, key in _SETTLED.items() if getattr(new, name) != getattr(config, name)]
    if settled:
        text = f"{settled[0]} is settled when sentinel begins: shut it down and start it"
        return Done(state, text, refused=Refusal.INVALID)
    if new.until is not None:
        if seen.local is None:
            return Done(state, "what time it is is not known", refused=Refusal.CONFLICT)
        new = replace(new, until=first_after(new.until, seen.local))
    new = replace(new, dry_run=config.dry_run, explain=config.explain)
    fields = {"by": asker(order.by), "workload": new.workload}
    events = [Event(name="sentinel.configured", at=seen.now, fields=fields)]
    events += [
        Event(name="config.unused", at=seen.now, fields={"source": override.source})
        for override in unused
    ]
    slots = {uuid: _given_another_chance(slot) for uuid, slot in state.slots.items()}
    begun = seen.now if new.run_for != config.run_for else state.counted_from
    state = replace(state, slots=slots, reconfigured=True, counted_from=begun)
    return Done(state, "the settings were taken over", (), None, events, config=new)


def _given(values: tuple[Value, ...]) -> dict[str, Given]:
    return {value.key: Given(text=value.text, source=value.source) for value in values}


def _override(values: OverrideValues) -> Override:
    given = _given(values.given)
    return Override(selector=values.selector, source=values.source, given=given)
