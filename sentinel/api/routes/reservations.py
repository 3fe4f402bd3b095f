"""Reservations of GPUs, and allocations of a GPU's memory to a process and its children."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from sentinel.api import serializers
from sentinel.api.bodies import (
    AllocationId,
    AllocationRequest,
    ProblemError,
    ReservationId,
    ReservationRequest,
    deadline_of,
)
from sentinel.api.context import (
    ApiContext,
    By,
    ContextDep,
    cancel_on_disconnect,
    end_stored,
    problems,
)
from sentinel.api.snapshots import gpus_free, memory_free, too_many_lost
from sentinel.api.supervisor_link import is_alive
from sentinel.host.lookups import USER_NAMES
from sentinel.host.procfs import read_stat, read_status
from sentinel.protocol.api_types import (
    AllocationInfo,
    Allocations,
    Outcome,
    ReservationInfo,
    Reservations,
)
from sentinel.protocol.commands import Allocate, Caller, CancelGrant, GrantKind, Reserve
from sentinel.protocol.problem import Code
from sentinel.protocol.views import Allocation, Reservation

reservations = APIRouter(prefix="/v1/reservations", tags=["reservations"])
allocations = APIRouter(prefix="/v1/allocations", tags=["allocations"])
ROUTERS = (reservations, allocations)

#: The time for a new API process to receive the state.
_READY_TIMEOUT_S = 5.0


@reservations.get("", responses=problems())
async def read_reservations(context: ContextDep) -> Reservations:
    """List all reservations, and the queue of requests for them."""
    return Reservations(
        reservations=serializers.reservations(context.views),
        queue=serializers.queue(context.views),
    )


@reservations.put("/{id:path}", responses=problems(Code.CONFLICT, Code.NO_SUCH_GPU, Code.TIMEOUT))
async def reserve(
    id_: Annotated[ReservationId, Path(alias="id")],
    request: Request,
    context: ContextDep,
    by: By,
    body: ReservationRequest,
) -> ReservationInfo:
    """Keep GPUs free: `gpus`, or `count` of these or of all, for `seconds` or until it is ended.

    The response is sent when the memory of all of them is free. If too few are available, the
    request waits in the queue for at most `wait_s` seconds, but not for GPUs that are lost. If the
    client disconnects before the response, it leaves the queue, and nothing is reserved. The same
    request again has the same response; after the end of a connection, it continues at its place
    for half a minute.
    """
    held = await cancel_on_disconnect(request, _reserve(context, by, id_, body))
    return serializers.reservation(held, context.views)


@reservations.delete("/{id:path}", responses=problems(Code.NOT_FOUND))
async def cancel_reservation(
    id_: Annotated[str, Path(alias="id")], context: ContextDep, by: By
) -> Outcome:
    """End a reservation, or a request that waits for one.

    If that cannot be stored, the response is an error: another daemon would restore it.
    """
    over = f"Reservation {id_} has ended, but another daemon would restore it"
    kind, writer = GrantKind.RESERVATION, context.reservation_writer
    return await end_stored(context, writer, over, CancelGrant, by=by, kind=kind, id=id_)


async def _reserve(
    context: ApiContext, by: Caller, id_: str, body: ReservationRequest
) -> Reservation:
    """Request a reservation, and wait until its GPUs are free."""
    deadline = deadline_of(body.wait_s)
    views, writer = context.views, context.reservation_writer
    # A client returns at once when its API process has been replaced.
    await views.until(lambda: views.fresh, time.monotonic() + _READY_TIMEOUT_S)
    _check(body, by)
    gpus = views.select(body.gpus)
    # Before a stressor is stopped for a reservation that could not be kept.
    await writer.test_disk("Nothing is reserved")
    return await context.grants.obtain(
        Reservation,
        lambda: _gpus_granted(context, by, id_, deadline),
        Reserve,
        by=by,
        id_=id_,
        reason=body.reason,
        gpus=gpus,
        count=body.count or 0,
        seconds=body.seconds,
        bound=body.bound,
        wait=body.wait_s != 0,
    )


async def _gpus_granted(context: ApiContext, by: Caller, id_: str, deadline: float) -> None:
    """Wait in the queue, and until the GPUs are free.

    Raises:
        ProblemError: The GPUs were not available or free in time, too many of them are lost, or a
            user has ended the request.
    """
    views = context.views
    lost: str | None = None

    def is_settled() -> bool:
        nonlocal lost
        request = views.grant(Reservation, id_)
        if request is None or request.gpus:
            return True
        lost = too_many_lost(views, request.named, request.count)
        return lost is not None

    if not await views.until(is_settled, deadline) or lost is not None:
        if context.grants.waiting[GrantKind.RESERVATION, id_] > 1:
            why = "The GPUs were not available in time; another connection still waits for them."
            raise ProblemError(Code.CONFLICT, why)
        left = await context.supervisor.request(
            CancelGrant, by=by, kind=GrantKind.RESERVATION, id=id_, gives_up=True
        )
        raise ProblemError(Code.CONFLICT, lost or left.text)
    granted = views.grant(Reservation, id_)
    if granted is None:
        raise ProblemError(Code.CONFLICT, "The request was ended while it waited.")
    await gpus_free(views, granted, deadline)


def _check(body: ReservationRequest, by: Caller) -> None:
    """Reject inconsistent requests.

    Raises:
        ProblemError: There are no GPUs and no count, nothing ends the reservation, or it is to be
            bound to a process that is not visible.
    """
    if body.gpus is None and body.count is None:
        raise ProblemError(Code.INVALID, "Give gpus, a selection, or count, a number, or both.")
    if not body.bound and "seconds" not in body.model_fields_set:
        why = (
            "Nothing ends this reservation: give seconds, null (None) for no limit, or bound to end"
            " it with this process."
        )
        raise ProblemError(Code.INVALID, why)
    if body.bound and not is_alive(by):
        why = (
            "a TCP client is not a process of this host"
            if by.via == "tcp"
            else "the calling process is not visible here, as from another container"
        )
        raise ProblemError(Code.INVALID, f"It cannot be bound: {why}. Give it seconds instead.")


# --- allocations ------------------------------------------------------------------------------


@allocations.get("", responses=problems(Code.NO_SUCH_GPU))
async def read_allocations(
    context: ContextDep,
    gpu: Annotated[str | None, Query(max_length=256, description="Only this GPU.")] = None,
) -> Allocations:
    """List the allocations and the budget of each GPU, or of one."""
    views = context.views.gpus if gpu is None else (context.views.one(gpu),)
    uuids = {view.uuid for view in views}
    known = context.views.host.allocations
    return Allocations(
        allocations=tuple(
            serializers.allocation(granted, context.views)
            for granted in known
            if granted.gpu in uuids
        ),
        gpus=tuple(serializers.budget(view, known) for view in views),
    )


@allocations.put("/{id:path}", responses=problems(Code.CONFLICT, Code.NO_SUCH_GPU, Code.TIMEOUT))
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
    return serializers.allocation(allocated, context.views)


@allocations.delete("/{id:path}", responses=problems(Code.NOT_FOUND))
async def cancel_allocation(
    id_: Annotated[str, Path(alias="id")], context: ContextDep, by: By
) -> Outcome:
    """End an allocation."""
    return await context.run_command(CancelGrant, by=by, kind=GrantKind.ALLOCATION, id=id_)


async def allocate_memory(
    context: ApiContext, by: Caller, *, id_: str, gpu: str, size: int, wait_s: float | None
) -> Allocation:
    """Allocate memory and wait until it is free; after a failure, nothing is allocated.

    Args:
        context: The shared state.
        by: The process that gets the memory.
        id_: The id.
        gpu: The GPU's UUID.
        size: Bytes.
        wait_s: The maximum wait; None is no limit.

    Raises:
        ProblemError: It was refused, the memory is not free in time, or another client ended it.
    """
    deadline = deadline_of(wait_s)
    return await context.grants.obtain(
        Allocation,
        lambda: memory_free(context.views, gpu, time.monotonic(), deadline),
        Allocate,
        by=by,
        id_=id_,
        gpu=gpu,
        size=size,
    )


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
