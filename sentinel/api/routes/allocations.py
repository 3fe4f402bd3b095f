"""Allocations: parts of a GPU's memory that are granted to a process and its children."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from sentinel.api.bodies import AllocationId, AllocationRequest, ProblemError
from sentinel.api.context import ApiContext
from sentinel.api.routes.dependencies import (
    By,
    ContextDep,
    cancel_on_disconnect,
    problems,
    provisional,
)
from sentinel.api.serializers import allocation, budget
from sentinel.api.snapshots import memory_free
from sentinel.host.names import USER_NAMES
from sentinel.host.procfs import read_stat, read_status
from sentinel.protocol.api_types import AllocationInfo, Allocations, Outcome
from sentinel.protocol.commands import Allocate, Caller, CancelAllocation
from sentinel.protocol.problem import Code
from sentinel.protocol.views import Allocation

router = APIRouter(prefix="/v1/allocations", tags=["allocations"])


@router.get("", responses=problems(Code.NO_SUCH_GPU, Code.INVALID))
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
        allocations=tuple(allocation(one, context.views, now) for one in known if one.gpu in uuids),
        gpus=tuple(budget(view, known) for view in views),
    )


@router.put(
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
    return allocation(allocated, context.views, time.monotonic())


@router.delete("/{id}", responses=problems(Code.NOT_FOUND, Code.INVALID))
async def cancel_allocation(
    id_: Annotated[str, Path(alias="id")], context: ContextDep, by: By
) -> Outcome:
    """End an allocation."""
    reply = await context.supervisor.execute(CancelAllocation, by=by, id=id_)
    return Outcome(text=reply.text, gpus=reply.gpus)


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
    await context.supervisor.execute(Allocate, by=by, id=id_, gpu=gpu, size=size)
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
