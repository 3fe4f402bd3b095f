"""The queue of the requests that wait for GPUs, and the choice of the GPUs of one. Pure.

Each GPU goes to the first request in the queue that can use it: one that names GPUs can use these,
though it may need only some of them; any other request can use every GPU. So a later request is
served earlier only on GPUs that no request before it can use, and delays none. A large request is
not passed by smaller ones: how long foreign processes run is not known, so every GPU that a smaller
one took could be the one that the large one needs next. GPUs that a request still has to wait for
are not kept free meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sentinel.core import health
from sentinel.core.gpu_state import Busy, GpuState, Idle, Stopped, Unknown
from sentinel.core.state import State, reservation_of
from sentinel.protocol.views import Reservation
from sentinel.units import format_duration, format_indices

#: An answer lists at most so many allocations.
_MAX_LISTED = 10
#: And so many reasons; GPUs with the same one are named together.
_MAX_REASONS = 4
#: What a reason has that is a clause, such as "memory is in use"; others continue "GPU 0 is".
_VERB = re.compile(r" (is|cannot) ")


def claims(state: State, before: str | None = None) -> dict[str, str]:
    """Map each GPU to the first waiting request that can use it, of those before ``before``."""
    claimed: dict[str, str] = {}
    for request in waiting(state):
        if request.id == before:
            break
        for uuid in request.named or state.gpu_states:
            claimed.setdefault(uuid, request.id)
    return claimed


def waiting(state: State) -> Iterator[Reservation]:
    """Yield the requests in the queue."""
    return (request for request in state.reservations.values() if not request.gpus)


def why_waiting(state: State, request: Reservation, now: float) -> str:
    """Explain why a request still waits."""
    _, why = choose(state, request, claims(state, before=request.id), now)
    return why or "the GPUs were not available"


def place(state: State, id_: str) -> int:
    """Count the requests that wait up to this one."""
    return [request.id for request in waiting(state)].index(id_) + 1


def choose(
    state: State, request: Reservation, claims: Mapping[str, str], now: float
) -> tuple[tuple[str, ...], str]:
    """Choose the GPUs of a valid request.

    Args:
        state: The state.
        request: The request.
        claims: The GPUs of earlier requests in the queue, with the ids of these.
        now: The time.

    Returns:
        The UUIDs, or none and why too few GPUs are available.
    """
    candidates = [state.gpu_states[uuid] for uuid in request.named or state.gpu_states]
    reasons = [_why_not(state, gpu_state, claims, now) for gpu_state in candidates]
    free = [gpu_state for gpu_state, why in zip(candidates, reasons, strict=True) if why is None]
    gpus = _pick(request, free)
    if gpus:
        return gpus, ""
    why = _summary([reason for reason in reasons if reason is not None])
    if free and request.count != len(request.named):
        why = f"only {len(free)} of {request.count} GPUs can be reserved: {why}"
    return (), why


def servable(state: State) -> Iterator[tuple[Reservation, tuple[str, ...]]]:
    """Yield the waiting requests that can be served now, each with its GPUs."""
    free = {
        uuid: gpu_state
        for uuid, gpu_state in state.gpu_states.items()
        if _why_not(state, gpu_state, {}, 0.0) is None
    }
    for request in waiting(state) if free else ():
        usable = [uuid for uuid in request.named or state.gpu_states if uuid in free]
        gpus = _pick(request, [free[uuid] for uuid in usable])
        if gpus:
            yield request, gpus
        for uuid in gpus or usable:
            del free[uuid]


def _pick(request: Reservation, free: list[GpuState]) -> tuple[str, ...]:
    """Choose the GPUs of a request among free ones that it can use; none if they are too few."""
    if len(free) < request.count:
        return ()
    if request.count != len(request.named):
        free = sorted(free, key=_preference)
    return tuple(gpu_state.gpu.uuid for gpu_state in free[: request.count])


def _preference(gpu_state: GpuState) -> tuple[float, bool, int]:
    """Sort key: coolest, then free, then lowest index."""
    held = not isinstance(gpu_state.stressor, Stopped)
    return -health.multiplier(gpu_state), held, gpu_state.gpu.index


@dataclass(frozen=True)
class _Reason:
    """Why one GPU cannot be reserved."""

    index: int
    #: What GPUs with the same reason share.
    text: str
    #: What is added for a GPU that is alone with its reason.
    more: str = ""
    #: Whether the text is a clause with a subject of its own.
    is_clause: bool = False


def _summary(reasons: Sequence[_Reason]) -> str:
    """Describe why GPUs cannot be reserved: those with the same reason together."""
    groups: dict[str, list[_Reason]] = {}
    for reason in reasons:
        groups.setdefault(reason.text, []).append(reason)
    parts = []
    for text, group in list(groups.items())[:_MAX_REASONS]:
        alone = len(group) == 1
        name, verb = ("GPU", " is") if alone else ("GPUs", " are")
        joint = ":" if group[0].is_clause else verb
        parts.append(f"{name} {_indices(group)}{joint} {text}{group[0].more if alone else ''}")
    left = [reason for group in list(groups.values())[_MAX_REASONS:] for reason in group]
    if left:
        parts.append(f"and {len(left)} more, GPU{'' if len(left) == 1 else 's'} {_indices(left)}")
    return "; ".join(parts)


def _indices(reasons: Sequence[_Reason]) -> str:
    return format_indices(reason.index for reason in reasons)


def _why_not(
    state: State, gpu_state: GpuState, claims: Mapping[str, str], now: float
) -> _Reason | None:
    """Explain why a GPU cannot be reserved now, or return None if it can."""
    index = gpu_state.gpu.index
    reserved = reservation_of(state, gpu_state.gpu.uuid)
    if reserved is not None:
        end = "" if reserved.until is None else f" for {format_duration(reserved.until - now)} more"
        if reserved.bound and reserved.by.pid is not None:
            end = f" until PID {reserved.by.pid} ends"
        purpose = f": {reserved.reason}" if reserved.reason else ""
        return _Reason(index, f"reserved by {reserved.by}{end}{purpose} ({reserved.id})")
    if gpu_state.allocations:
        ids = ", ".join(sorted(gpu_state.allocations)[:_MAX_LISTED])
        return _Reason(index, "partly allocated", f": {ids}")
    match gpu_state.occupancy:
        case Idle():
            earlier = claims.get(gpu_state.gpu.uuid)
            if earlier is None:
                return None
            return _Reason(index, f"for an earlier request ({earlier})")
        case Busy(reason=reason, processes=processes):
            names = ", ".join(dict.fromkeys(process.name or "a process" for process in processes))
            pids = ", ".join(str(process.pid) for process in processes[:_MAX_LISTED])
            text = f"{reason}: {names}" if names else reason
            is_clause = _VERB.search(reason) is not None
            return _Reason(index, text, f" (pid {pids})" if pids else "", is_clause)
        case Unknown(reason=reason):
            return _Reason(index, f"unknown: {reason}")
