"""Allocations: parts of a GPU's memory that are kept for a process and its children."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from sentinel.api.requests import AllocationRequest
from sentinel.api.routes.allocator import holder, promise
from sentinel.api.routes.dependencies import By, ContextDep, cancel_on_disconnect, may
from sentinel.api.state.memory_budget import budget
from sentinel.api.state.serializers import allocation
from sentinel.protocol.api_types import Allocated, Allocations, Code, Outcome
from sentinel.protocol.commands import Deallocate

router = APIRouter(prefix="/v1/allocations", tags=["allocating"])


@router.get("", responses=may(Code.NO_SUCH_GPU, Code.INVALID))
async def read_allocations(
    context: ContextDep,
    gpu: Annotated[str | None, Query(max_length=256, description="Of this GPU only.")] = None,
) -> Allocations:
    """Show what is promised of the memory of each GPU, or of one, and what may be yet."""
    now = time.monotonic()
    gpus = context.views.gpus if gpu is None else (context.views.one(gpu),)
    shown = {view.uuid for view in gpus}
    promised = context.views.host.allocations
    return Allocations(
        allocations=tuple(
            allocation(one, context.views, now) for one in promised if one.gpu in shown
        ),
        gpus=tuple(budget(view, promised) for view in gpus),
    )


@router.post(
    "",
    status_code=201,
    responses=may(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU, Code.TIMEOUT),
)
async def allocate(
    request: Request, context: ContextDep, by: By, wish: AllocationRequest
) -> Allocated:
    """Keep a part of a GPU's memory for the process that asks and its children, or for `pid`.

    The answer comes when the memory is free. It is kept until it is given back or that process
    ends; over TCP, where there is no process, until it is given back. A client that goes away
    before the answer gets none.
    """
    gpu = context.views.one(wish.gpu).uuid
    work = promise(
        context, holder(by, wish.pid), name=wish.id, gpu=gpu, size=wish.size, wait=wish.wait_s
    )
    given = await cancel_on_disconnect(request, work)
    return Allocated(allocation=allocation(given, context.views, time.monotonic()))


@router.delete("/{id}", responses=may(Code.NOT_FOUND, Code.INVALID))
async def deallocate(id_: Annotated[str, Path(alias="id")], context: ContextDep, by: By) -> Outcome:
    """Give memory back."""
    answer = await context.channel.order(Deallocate, by=by, id=id_)
    return Outcome(text=answer.text, gpus=answer.gpus)
