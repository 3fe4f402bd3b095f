"""What clients ask about the memory of GPUs: to be promised some, and to give it back. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.actions import Event
from sentinel.core.events import gpu_event
from sentinel.core.gpu.allocations import available, budget
from sentinel.core.node.admin import reservation_of
from sentinel.core.node.command_result import CommandResult, caller, wrong_gpus
from sentinel.core.observation import Observation
from sentinel.core.state import GpuState, State, Unknown
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import Allocate, Confirm, Deallocate, Refusal
from sentinel.protocol.views import Allocation
from sentinel.units import format_size

#: The most promises of memory that are kept on all GPUs together, and the longest id: all of them
#: are shown in one message.
_MOST_PROMISES = 128
_LONGEST_ID = 100
#: So many are named where one is asked for that there is not.
_NAMED = 10


def apply_commands(
    state: State, order: Allocate | Deallocate | Confirm, seen: Observation, config: Config
) -> CommandResult:
    """Return what an order about promised memory led to."""
    match order:
        case Allocate():
            return _allocate(state, order, seen, config)
        case Deallocate() | Confirm():
            return _decide_on(state, order, seen.now)


def forget_unconfirmed(state: State, now: float) -> tuple[State, list[Event]]:
    """End the promises of which nobody will hear: the service that made them is gone."""
    events: list[Event] = []
    for gpu_state in tuple(state.gpu_states.values()):
        for promise in gpu_state.allocations.values():
            if not promise.confirmed:
                state, said = _end(state, promise, Caller(via="service"), now)
                events += said
    return state, events


def _allocate(state: State, order: Allocate, seen: Observation, config: Config) -> CommandResult:
    wrong = wrong_gpus(state, (order.gpu,)) or _wrong(state, order)
    if wrong is not None:
        return wrong
    gpu_state, reading, own = (
        state.gpu_states[order.gpu],
        seen.readings.get(order.gpu),
        config.of(order.gpu),
    )
    left = available(gpu_state, reading, own)
    if order.size > left:
        most = format_size(budget(gpu_state, reading, own))
        text = (
            f"{format_size(order.size)} of GPU {gpu_state.gpu.index} are asked for, and"
            f" {format_size(left)} of {most} can be promised"
        )
        return CommandResult(state, text, refused=Refusal.CONFLICT)
    promise = Allocation(id=order.id, gpu=order.gpu, size=order.size, by=order.by, since=seen.now)
    gpu_state = replace(
        gpu_state,
        allocations={**gpu_state.allocations, order.id: promise},
        allocations_changed=seen.now,
    )
    fields = {"id": order.id, "size": order.size, "by": caller(order.by)}
    return CommandResult(
        _with(state, gpu_state),
        f"promised {format_size(order.size)} of GPU {gpu_state.gpu.index}",
        (order.gpu,),
        events=[gpu_event("memory.allocated", gpu_state, seen.now, **fields)],
    )


def _wrong(state: State, order: Allocate) -> CommandResult | None:
    """Return what is wrong with what was asked for, if anything is."""
    gpu_state = state.gpu_states[order.gpu]
    if _find(state, order.id) is not None:
        text = f"there is an allocation {order.id!r}"
        return CommandResult(state, text, refused=Refusal.CONFLICT)
    count = sum(len(one.allocations) for one in state.gpu_states.values())
    if count >= _MOST_PROMISES:
        text = f"there are {count} allocations already, and no more are kept"
        return CommandResult(state, text, refused=Refusal.CONFLICT)
    reserved = reservation_of(state, order.gpu)
    if reserved is not None and reserved.by.uid != order.by.uid:
        text = f"GPU {gpu_state.gpu.index} is reserved for somebody else: {reserved.reason}"
        return CommandResult(state, f"{text} ({reserved.id})", refused=Refusal.CONFLICT)
    if isinstance(gpu_state.occupancy, Unknown):
        text = f"GPU {gpu_state.gpu.index} is unknown: {gpu_state.occupancy.reason}"
        return CommandResult(state, text, refused=Refusal.CONFLICT)
    if not order.id or len(order.id) > _LONGEST_ID or not order.id.isprintable():
        text = f"an id is one line of 1 to {_LONGEST_ID} characters"
        return CommandResult(state, text, refused=Refusal.INVALID)
    if order.size <= 0:
        return CommandResult(state, f"{order.size} bytes are no size", refused=Refusal.INVALID)
    return None


def _decide_on(state: State, order: Deallocate | Confirm, now: float) -> CommandResult:
    """Keep or end a promise."""
    promise = _find(state, order.id)
    if promise is None:
        ids = sorted(
            one for gpu_state in state.gpu_states.values() for one in gpu_state.allocations
        )
        more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
        known = f"{', '.join(ids[:_NAMED]) or 'none'}{more}"
        text = f"there is no allocation {order.id!r}; there are: {known}"
        return CommandResult(state, text, refused=Refusal.NOT_FOUND)
    if isinstance(order, Confirm):
        gpu_state = state.gpu_states[promise.gpu]
        kept = {**gpu_state.allocations, promise.id: replace(promise, confirmed=True)}
        state = _with(state, replace(gpu_state, allocations=kept))
        return CommandResult(state, f"allocation {promise.id} holds", (promise.gpu,))
    state, events = _end(state, promise, order.by, now)
    return CommandResult(state, f"allocation {promise.id} is over", (promise.gpu,), events=events)


def _end(state: State, promise: Allocation, by: Caller, now: float) -> tuple[State, list[Event]]:
    gpu_state = state.gpu_states[promise.gpu]
    left = {name: one for name, one in gpu_state.allocations.items() if name != promise.id}
    gpu_state = replace(gpu_state, allocations=left, allocations_changed=now)
    fields = {"id": promise.id, "size": promise.size, "by": caller(by)}
    return _with(state, gpu_state), [gpu_event("memory.deallocated", gpu_state, now, **fields)]


def _find(state: State, name: str) -> Allocation | None:
    for gpu_state in state.gpu_states.values():
        if name in gpu_state.allocations:
            return gpu_state.allocations[name]
    return None


def _with(state: State, gpu_state: GpuState) -> State:
    return replace(state, gpu_states={**state.gpu_states, gpu_state.gpu.uuid: gpu_state})
