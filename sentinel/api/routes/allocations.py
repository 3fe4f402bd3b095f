"""Allocations: parts of a GPU's memory that are granted to a process and its children."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from sentinel.api.requests import AllocationRequest
from sentinel.api.routes.allocator import allocate_memory, resolve_holder
from sentinel.api.routes.dependencies import By, ContextDep, cancel_on_disconnect, problems
from sentinel.api.state.memory_budget import budget
from sentinel.api.state.serializers import allocation
from sentinel.protocol.api_types import Allocated, Allocations, Outcome
from sentinel.protocol.commands import CancelAllocation
from sentinel.protocol.problem import Code

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


@router.post(
    "",
    status_code=201,
    responses=problems(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU, Code.TIMEOUT),
)
async def allocate(
    request: Request, context: ContextDep, by: By, body: AllocationRequest
) -> Allocated:
    """Allocate a part of a GPU's memory to the calling process and its children, or to `pid`.

    The response is sent when the memory is free. The allocation exists until it is ended, or until
    the process ends; over TCP, where the process is not known, until it is ended. If the client
    disconnects before the response, nothing is allocated.
    """
    gpu = context.views.one(body.gpu).uuid
    work = allocate_memory(
        context,
        resolve_holder(by, body.pid),
        id_=body.id,
        gpu=gpu,
        size=body.size,
        wait_s=body.wait_s,
    )
    allocated = await cancel_on_disconnect(request, work)
    return Allocated(allocation=allocation(allocated, context.views, time.monotonic()))


@router.delete("/{id}", responses=problems(Code.NOT_FOUND, Code.INVALID))
async def cancel_allocation(
    id_: Annotated[str, Path(alias="id")], context: ContextDep, by: By
) -> Outcome:
    """End an allocation."""
    reply = await context.supervisor.execute(CancelAllocation, by=by, id=id_)
    return Outcome(text=reply.text, gpus=reply.gpus)
