"""Reservations of GPUs, and allocations of a GPU's memory to a process and its children."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request

from sentinel.api import serializers
from sentinel.api.bodies import (
    AllocationId,
    AllocationRequest,
    ProblemError,
    ReservationId,
    ReservationRequest,
)
from sentinel.api.context import (
    ApiContext,
    By,
    ContextDep,
    cancel_on_disconnect,
    end_stored,
    problems,
)
from sentinel.api.snapshots import gpus_free, memory_free
from sentinel.api.supervisor_link import check_accepted, is_alive
from sentinel.host.lookups import USER_NAMES
from sentinel.host.procfs import read_stat, read_status
from sentinel.protocol.api_types import (
    AllocationInfo,
    Allocations,
    Outcome,
    ReservationInfo,
    Reservations,
)
from sentinel.protocol.commands import (
    LEASE_S,
    Allocate,
    Caller,
    CancelAllocation,
    CancelReservation,
    CommandReply,
    Extend,
    Refusal,
    Reserve,
)
from sentinel.protocol.problem import Code
from sentinel.protocol.views import Allocation, Reservation

reservations = APIRouter(prefix="/v1/reservations", tags=["reservations"])
allocations = APIRouter(prefix="/v1/allocations", tags=["allocations"])
ROUTERS = (reservations, allocations)

#: How often the lease of what a client waits for is renewed.
_RENEW_EVERY_S = LEASE_S / 3
#: The time for a new API process to receive the state.
_READY_TIMEOUT_S = 5.0


@reservations.get("", responses=problems())
async def read_reservations(context: ContextDep) -> Reservations:
    """List all reservations, and the queue of requests for them."""
    now = time.monotonic()
    return Reservations(
        reservations=serializers.reservations(context.views, now),
        queue=serializers.queue(context.views, now),
    )


@reservations.put(
    "/{id}", responses=problems(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU, Code.TIMEOUT)
)
async def reserve(
    id_: Annotated[ReservationId, Path(alias="id")],
    request: Request,
    context: ContextDep,
    by: By,
    body: ReservationRequest,
) -> ReservationInfo:
    """Keep GPUs free: `gpus`, or any `count`, for `seconds` or until the reservation is ended.

    The response is sent when the memory of all of them is free. If too few are available, the
    request waits in the queue for at most `wait_s` seconds. If the client disconnects before the
    response, it leaves the queue, and nothing is reserved. The same request again has the same
    response; after the end of a connection, it continues at its place for half a minute.
    """
    held = await cancel_on_disconnect(request, _reserve(context, by, id_, body))
    return serializers.reservation(held, context.views, time.monotonic())


@reservations.delete("/{id}", responses=problems(Code.NOT_FOUND, Code.INVALID))
async def cancel_reservation(
    id_: Annotated[str, Path(alias="id")], context: ContextDep, by: By
) -> Outcome:
    """End a reservation, or a request that waits for one.

    If that cannot be stored, the response is an error: another daemon would restore it.
    """
    over = f"Reservation {id_} is over, but another daemon would restore it"
    return await end_stored(
        context, context.reservation_writer, over, CancelReservation, by=by, id=id_
    )


async def _reserve(
    context: ApiContext, by: Caller, id_: str, body: ReservationRequest
) -> Reservation:
    """Request a reservation, wait for its GPUs, store the answer, and end the lease."""
    deadline = time.monotonic() + body.wait_s
    views, writer = context.views, context.reservation_writer
    # A client returns at once when its API process has been replaced.
    await views.until(lambda: views.fresh, time.monotonic() + _READY_TIMEOUT_S)
    _check(body, by)
    gpus = views.select(body.gpus)
    # Before a stressor is stopped for a reservation that could not be kept.
    await writer.test_disk("Nothing is reserved")
    asking = context.supervisor.execute(
        Reserve,
        by=by,
        id=id_,
        reason=body.reason,
        gpus=gpus,
        count=body.count or 0,
        seconds=body.seconds,
        bound=body.bound,
        wait=body.wait_s > 0,
    )
    await _accepted(context, by, id_, CancelReservation, asking)
    known = views.reservation(id_)
    if known is not None and known.lease is None:  # its answer was lost
        await writer.wait_written("The reservation is not stored")
        return known
    with ExitStack() as stored:
        async with provisional(context, by, id_, CancelReservation):
            held = await _granted(context, by, id_, deadline)
            await gpus_free(views, held.gpus, deadline)
            held = replace(held, lease=None)
            stored.enter_context(writer.adding(held))
            await writer.wait_written("Nothing is reserved")
    return held


async def _granted(context: ApiContext, by: Caller, id_: str, deadline: float) -> Reservation:
    """Wait in the queue.

    Raises:
        ProblemError: The GPUs were not available in time, or a user has ended the request.
    """
    views = context.views

    def is_settled() -> bool:
        request = views.reservation(id_)
        return request is None or bool(request.gpus)

    if not await views.until(is_settled, deadline):
        if context.waiting[_key(CancelReservation, id_)] > 1:
            why = "The GPUs were not available in time; another connection still waits for them."
            raise ProblemError(Code.CONFLICT, why)
        left = await context.supervisor.request(CancelReservation, by=by, id=id_)
        raise ProblemError(Code.CONFLICT, left.text)
    granted = views.reservation(id_)
    if granted is None:
        raise ProblemError(Code.CONFLICT, "The request was ended while it waited.")
    return granted


def _check(body: ReservationRequest, by: Caller) -> None:
    """Reject inconsistent requests.

    Raises:
        ProblemError: There are GPUs as well as a count, or neither; or the reservation is to be
            bound to a process that is not visible.
    """
    if (body.gpus is None) == (body.count is None):
        raise ProblemError(Code.INVALID, "Give either gpus, a selection, or count, a number.")
    if body.bound and not is_alive(by):
        why = (
            "a TCP client is not a process of this host"
            if by.via == "tcp"
            else "the calling process is not visible here, as from another container"
        )
        raise ProblemError(Code.INVALID, f"It cannot be bound: {why}. Give it seconds instead.")


# --- allocations ------------------------------------------------------------------------------


@allocations.get("", responses=problems(Code.NO_SUCH_GPU, Code.INVALID))
async def read_allocations(
    context: ContextDep,
    gpu: Annotated[str | None, Query(max_length=256, description="Only this GPU.")] = None,
) -> Allocations:
    """List the allocations and the budget of each GPU, or of one."""
    now = time.monotonic()
    views = context.views.gpus if gpu is None else (context.views.one(gpu),)
    uuids = {view.uuid for view in views}
    known = context.views.host.allocations
    return Allocations(
        allocations=tuple(
            serializers.allocation(granted, context.views, now)
            for granted in known
            if granted.gpu in uuids
        ),
        gpus=tuple(serializers.budget(view, known) for view in views),
    )


@allocations.put(
    "/{id}", responses=problems(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU, Code.TIMEOUT)
)
async def allocate(
    id_: Annotated[AllocationId, Path(alias="id")],
    request: Request,
    context: ContextDep,
    by: By,
    body: AllocationRequest,
) -> AllocationInfo:
    """Allocate a part of a GPU's memory to the calling process and its children, or to `pid`.

    The response is sent when the memory is free. The allocation exists until it is ended, or until
    the process ends; over TCP, where the process is not known, until it is ended. If the client
    disconnects before the response, nothing is allocated. The same request again, for the same
    process, has the same response.
    """
    gpu = context.views.one(body.gpu).uuid
    holder = resolve_holder(by, body.pid)
    work = allocate_memory(context, holder, id_=id_, gpu=gpu, size=body.size, wait_s=body.wait_s)
    allocated = await cancel_on_disconnect(request, work)
    return serializers.allocation(allocated, context.views, time.monotonic())


@allocations.delete("/{id}", responses=problems(Code.NOT_FOUND, Code.INVALID))
async def cancel_allocation(
    id_: Annotated[str, Path(alias="id")], context: ContextDep, by: By
) -> Outcome:
    """End an allocation."""
    return await context.run_command(CancelAllocation, by=by, id=id_)


async def allocate_memory(
    context: ApiContext, by: Caller, *, id_: str, gpu: str, size: int, wait_s: float
) -> Allocation:
    """Allocate memory and wait until it is free; after a failure, nothing is allocated.

    Args:
        context: The shared state.
        by: The process that gets the memory.
        id_: The id.
        gpu: The GPU's UUID.
        size: Bytes.
        wait_s: The maximum wait.

    Raises:
        ProblemError: It was refused, the memory is not free in time, or another client ended it.
    """
    deadline = time.monotonic() + wait_s
    asking = context.supervisor.execute(Allocate, by=by, id=id_, gpu=gpu, size=size)
    await _accepted(context, by, id_, CancelAllocation, asking)
    known = context.views.allocation(id_)
    if known is None or known.lease is not None:
        async with provisional(context, by, id_, CancelAllocation):
            await memory_free(context.views, gpu, time.monotonic(), deadline)
        known = context.views.allocation(id_)
    if known is None:
        raise ProblemError(Code.CONFLICT, "The allocation was ended at once.")
    return known


def resolve_holder(by: Caller, pid: int | None) -> Caller:
    """Determine the process that gets the memory: the caller, or the one with ``pid``.

    Raises:
        ProblemError: The process does not exist, or the caller must not name it.
    """
    if by.via != "unix":
        if pid is None:
            return by
        why = "A TCP client is not a process of this host and cannot name one: leave pid out."
        raise ProblemError(Code.INVALID, why)
    if by.started is None:
        why = (
            "The calling process is not visible here, as from another container, so its end cannot"
            " be seen: use TCP, and cancel the allocation."
        )
        raise ProblemError(Code.INVALID, why)
    if pid is None or pid == by.pid:
        return by
    if _is_in_other_namespace(by.pid or 0):
        why = (
            f"pid: the caller is in another PID namespace, where {pid} is another process:"
            " leave pid out, and call from the process that needs the memory."
        )
        raise ProblemError(Code.INVALID, why)
    before = read_stat(pid)
    uid = _uid_of(pid)
    stat = read_stat(pid)
    # The same process both times. Its state and its name may have changed in between.
    if (
        before is None
        or stat is None
        or uid is None
        or not stat.alive
        or stat.started != before.started
    ):
        raise ProblemError(Code.INVALID, f"pid: process {pid} is not visible here.")
    if by.uid not in {0, uid}:
        owner = USER_NAMES.get(uid) or f"user {uid}"
        why = f"pid: process {pid} belongs to {owner}; only that user and root may name it."
        raise ProblemError(Code.FORBIDDEN, why)
    user = USER_NAMES.get(uid)
    return Caller(via=by.via, uid=uid, user=user, pid=pid, started=stat.started, level=by.level)


def _is_in_other_namespace(pid: int) -> bool:
    """Check whether a process is in a nested PID namespace: it has more than one PID."""
    return len(read_status(pid, "NSpid")) != 1


def _uid_of(pid: int) -> int | None:
    """Read the real user of a process; its folder in /proc may belong to root."""
    uids = read_status(pid, "Uid")
    return int(uids[0]) if uids else None


# --- leases -----------------------------------------------------------------------------------


async def _accepted(
    context: ApiContext,
    by: Caller,
    id_: str,
    undo: type[CancelReservation | CancelAllocation],
    asking: Coroutine[Any, Any, CommandReply],
) -> None:
    """Await the reply to a request; undo it if the client disconnects before the reply.

    Raises:
        ProblemError: It was refused, or there is no reply.
    """
    reply = asyncio.create_task(asking)
    # Another connection for the same may end meanwhile, which undoes nothing then.
    with _counted(context, _key(undo, id_)):
        try:
            await asyncio.shield(reply)
        except asyncio.CancelledError as error:
            await reply  # the supervisor has the request, and the views come before its reply
            end = error
        else:
            return
    async with provisional(context, by, id_, undo):
        raise end


@asynccontextmanager
async def provisional(
    context: ApiContext, by: Caller, id_: str, undo: type[CancelReservation | CancelAllocation]
) -> AsyncIterator[None]:
    """Renew the lease of what a client has asked for during the block, and end the lease after it.

    If the block fails, it is undone, unless the same was asked for again: the connection may be one
    that the client has lost and replaced. If this process ends meanwhile, so does the lease.

    Args:
        context: The shared state.
        by: The caller.
        id_: The id of a reservation or an allocation.
        undo: The command that ends it.

    Raises:
        ProblemError: It was ended meanwhile, or there is no reply.
    """
    is_allocation = undo is CancelAllocation
    find = context.views.allocation if is_allocation else context.views.reservation
    extend = partial(Extend, by=by, id=id_, allocation=is_allocation)
    renewing = asyncio.create_task(_renew(context, extend))
    key, completes = _key(undo, id_), False
    with _counted(context, key):
        try:
            yield
            completes = True
            _check_kept(await context.supervisor.request(extend, kept=True), undo)
        except BaseException:
            known = find(id_)
            is_given = known is not None and known.lease is None and not completes
            if known is not None and context.waiting[key] == 1 and not is_given:
                context.supervisor.post(undo, by=by, id=id_)
            raise
        finally:
            renewing.cancel()


@contextmanager
def _counted(context: ApiContext, key: str) -> Iterator[None]:
    """Count a connection that waits for a reservation or an allocation."""
    context.waiting[key] += 1
    try:
        yield
    finally:
        context.waiting[key] -= 1
        context.waiting += Counter()  # without those that are zero


def _key(undo: type[CancelReservation | CancelAllocation], id_: str) -> str:
    """Return the key of a reservation or an allocation among those that requests wait for."""
    return f"{undo.__name__} {id_}"


def _check_kept(reply: CommandReply, undo: type[CancelReservation | CancelAllocation]) -> None:
    """Check that there was still something to keep.

    Raises:
        ProblemError: It was ended meanwhile, or the daemon is ending.
    """
    if reply.refused is Refusal.NOT_FOUND:
        what = "allocation" if undo is CancelAllocation else "reservation"
        raise ProblemError(Code.CONFLICT, f"The {what} was ended before it was complete.")
    check_accepted(reply)


async def _renew(context: ApiContext, extend: Callable[..., Extend]) -> None:
    """Renew a lease until this is cancelled."""
    while True:
        await asyncio.sleep(_RENEW_EVERY_S)
        context.supervisor.post(extend)
