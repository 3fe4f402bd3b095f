"""What clients ask about the memory of GPUs: to be promised some, and to give it back. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.actions import Event
from sentinel.core.events import slot_event
from sentinel.core.gpu.allocations import budget, left_to_promise
from sentinel.core.node.admin import reservation_of
from sentinel.core.node.command_result import Done, asker, wrong_gpus
from sentinel.core.observation import Observation
from sentinel.core.state import Slot, State, Unknown
from sentinel.protocol.caller import Asker
from sentinel.protocol.commands import Allocate, Confirm, Deallocate, Refusal
from sentinel.protocol.views import Allocation
from sentinel.units import format_size

#: The most promises of memory that are kept on all GPUs together, and the longest id: all of them
#: are shown in one message.
_MOST_PROMISES = 128
_LONGEST_ID = 100
#: So many are named where one is asked for that there is not.
_NAMED = 10


def carry_out(
    state: State, order: Allocate | Deallocate | Confirm, seen: Observation, config: Config
) -> Done:
    """Return what an order about promised memory led to."""
    match order:
        case Allocate():
            return _allocate(state, order, seen, config)
        case Deallocate() | Confirm():
            return _decide_on(state, order, seen.now)


def forget_unconfirmed(state: State, now: float) -> tuple[State, list[Event]]:
    """End the promises of which nobody will hear: the service that made them is gone."""
    events: list[Event] = []
    for slot in tuple(state.slots.values()):
        for promise in slot.promises.values():
            if not promise.confirmed:
                state, said = _end(state, promise, Asker(via="service"), now)
                events += said
    return state, events


def _allocate(state: State, order: Allocate, seen: Observation, config: Config) -> Done:
    wrong = wrong_gpus(state, (order.gpu,)) or _wrong(state, order)
    if wrong is not None:
        return wrong
    slot, reading, own = state.slots[order.gpu], seen.readings.get(order.gpu), config.of(order.gpu)
    left = left_to_promise(slot, reading, own)
    if order.size > left:
        most = format_size(budget(slot, reading, own))
        text = (
            f"{format_size(order.size)} of GPU {slot.gpu.index} are asked for, and"
            f" {format_size(left)} of {most} can be promised"
        )
        return Done(state, text, refused=Refusal.CONFLICT)
    promise = Allocation(id=order.id, gpu=order.gpu, size=order.size, by=order.by, since=seen.now)
    slot = replace(slot, promises={**slot.promises, order.id: promise}, promises_changed=seen.now)
    fields = {"id": order.id, "size": order.size, "by": asker(order.by)}
    return Done(
        _with(state, slot),
        f"promised {format_size(order.size)} of GPU {slot.gpu.index}",
        (order.gpu,),
        events=[slot_event("memory.allocated", slot, seen.now, **fields)],
    )


def _wrong(state: State, order: Allocate) -> Done | None:
    """Return what is wrong with what was asked for, if anything is."""
    slot = state.slots[order.gpu]
    if _find(state, order.id) is not None:
        text = f"there is an allocation {order.id!r}"
        return Done(state, text, refused=Refusal.CONFLICT)
    count = sum(len(one.promises) for one in state.slots.values())
    if count >= _MOST_PROMISES:
        text = f"there are {count} allocations already, and no more are kept"
        return Done(state, text, refused=Refusal.CONFLICT)
    reserved = reservation_of(state, order.gpu)
    if reserved is not None and reserved.by.uid != order.by.uid:
        text = f"GPU {slot.gpu.index} is reserved for somebody else: {reserved.reason}"
        return Done(state, f"{text} ({reserved.id})", refused=Refusal.CONFLICT)
    if isinstance(slot.occupancy, Unknown):
        text = f"GPU {slot.gpu.index} is unknown: {slot.occupancy.reason}"
        return Done(state, text, refused=Refusal.CONFLICT)
    if not order.id or len(order.id) > _LONGEST_ID or not order.id.isprintable():
        text = f"an id is one line of 1 to {_LONGEST_ID} characters"
        return Done(state, text, refused=Refusal.INVALID)
    if order.size <= 0:
        return Done(state, f"{order.size} bytes are no size", refused=Refusal.INVALID)
    return None


def _decide_on(state: State, order: Deallocate | Confirm, now: float) -> Done:
    """Keep or end a promise."""
    promise = _find(state, order.id)
    if promise is None:
        ids = sorted(one for slot in state.slots.values() for one in slot.promises)
        more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
        known = f"{', '.join(ids[:_NAMED]) or 'none'}{more}"
        text = f"there is no allocation {order.id!r}; there are: {known}"
        return Done(state, text, refused=Refusal.NOT_FOUND)
    if isinstance(order, Confirm):
        slot = state.slots[promise.gpu]
        kept = {**slot.promises, promise.id: replace(promise, confirmed=True)}
        state = _with(state, replace(slot, promises=kept))
        return Done(state, f"allocation {promise.id} holds", (promise.gpu,))
    state, events = _end(state, promise, order.by, now)
    return Done(state, f"allocation {promise.id} is over", (promise.gpu,), events=events)


def _end(state: State, promise: Allocation, by: Asker, now: float) -> tuple[State, list[Event]]:
    slot = state.slots[promise.gpu]
    left = {name: one for name, one in slot.promises.items() if name != promise.id}
    slot = replace(slot, promises=left, promises_changed=now)
    fields = {"id": promise.id, "size": promise.size, "by": asker(by)}
    return _with(state, slot), [slot_event("memory.deallocated", slot, now, **fields)]


def _find(state: State, name: str) -> Allocation | None:
    for slot in state.slots.values():
        if name in slot.promises:
            return slot.promises[name]
    return None


def _with(state: State, slot: Slot) -> State:
    return replace(state, slots={**state.slots, slot.gpu.uuid: slot})
