"""The routes of the GPU Management System, by the verbs that all other routes have."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from sentinel.api.compat import readings
from sentinel.api.compat import schemas as told
from sentinel.api.context import ApiContext
from sentinel.api.http.errors import ProblemError, explain
from sentinel.api.routes.allocator import holder, promise
from sentinel.api.routes.dependencies import By, ContextDep, cancel_on_disconnect, may
from sentinel.api.routes.settings import change
from sentinel.api.state.memory_budget import budget
from sentinel.errors import SentinelError
from sentinel.protocol import commands
from sentinel.protocol.api_types import Code

T = TypeVar("T")

#: How long memory is waited for, in seconds.
_WAIT = 30.0
#: How many readings are told of where nobody says, as its document has it.
_HISTORY = 200


class _Route(APIRoute):
    """A route whose errors have the shape that these clients know."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answered(request: Request) -> Response:
            try:
                return await handle(request)
            except (
                ProblemError,
                SentinelError,
                RequestValidationError,
                HTTPException,
            ) as error:
                code, detail = explain(error)
                if isinstance(error, RequestValidationError) and request.method == "PUT":
                    detail = f"{detail} {told.failed_keys()}"
                failed = told.Failed(error=detail)
                return JSONResponse(failed.model_dump(), code.status.value)

        return answered


class Data(BaseModel, Generic[T]):
    """What was asked for."""

    success: Literal[True] = True
    data: T


class Message(BaseModel):
    """What was done, in a sentence."""

    success: Literal[True] = True
    message: str


class Changed(Data[told.Configuration]):
    """The configuration that holds from now on."""

    message: str


class AllGpus(BaseModel):
    """All GPUs."""

    gpu_count: int
    gpus: list[told.ManagedGpu]


class MetricsHistory(BaseModel):
    """What was read, the newest last."""

    count: int
    metrics: list[told.Past]


class MemoryAvailable(BaseModel):
    """How much memory of a GPU may be promised yet."""

    gpu_id: int
    available_mb: float


class MemoryAllocated(BaseModel):
    """Memory that was promised, and what is left."""

    allocation_id: str
    allocated_mb: float
    available_mb: float


class MemoryDeallocated(BaseModel):
    """Memory that was given back, and what is left."""

    allocation_id: str
    available_mb: float


class Throttled(told.Throttling):
    """How far work is to be slowed down, and on which GPU."""

    gpu_id: int
    current_state: told.State


router = APIRouter(prefix="/api/gpu", tags=["gpu manager"], route_class=_Route)


def _may(*codes: Code) -> dict[int | str, dict[str, Any]]:
    """Return what these routes say of their errors; those of the gate have its shape."""
    known = may(*codes)
    for code in (Code.UNAVAILABLE, *codes):
        known[code.status.value] = {
            "model": told.Failed,
            "description": known[code.status.value]["description"],
        }
    return known


_LOOKS = _may(Code.NO_SUCH_GPU, Code.INVALID)
GpuId = Annotated[int, Query(ge=0, le=1023, description="nvidia-smi's index.")]


@router.get("/status", responses=_LOOKS)
async def read_status(context: ContextDep, gpu_id: GpuId = 0) -> Data[told.ManagedGpu]:
    """Show one GPU."""
    held = context.settings.held.config
    view = context.views.one(str(gpu_id))
    return Data(data=told.status(view, held, context.views.host.allocations))


@router.get("/status/all", responses=_LOOKS)
async def read_all(context: ContextDep) -> Data[AllGpus]:
    """Show all GPUs."""
    held = context.settings.held.config
    promised = context.views.host.allocations
    gpus = [told.status(view, held, promised) for view in context.views.gpus]
    return Data(data=AllGpus(gpu_count=len(gpus), gpus=gpus))


@router.get("/metrics", responses=_LOOKS)
async def read_metrics(context: ContextDep, gpu_id: GpuId = 0) -> Data[told.Metrics]:
    """Show what was read of one GPU last."""
    return Data(data=told.metrics(context.views.one(str(gpu_id))))


@router.get("/metrics/history", responses=_LOOKS)
async def read_history(
    request: Request,
    context: ContextDep,
    gpu_id: Annotated[int | None, Query(ge=0, le=1023)] = None,
    limit: Annotated[int, Query(ge=1, le=3600)] = 100,
) -> Data[MetricsHistory]:
    """Show what was read of one GPU, or of all, the newest last."""
    most = min(limit, _history_size(request))
    views = context.views.gpus if gpu_id is None else (context.views.one(str(gpu_id)),)
    found = [
        told.past(view, reading)
        for view in views
        for reading in await readings.readings(context, view, most)
    ]
    found.sort(key=lambda one: one.timestamp)
    return Data(data=MetricsHistory(count=len(found[-most:]), metrics=found[-most:]))


@router.get("/temperature/trend", responses=_LOOKS)
async def read_trend(
    context: ContextDep,
    gpu_id: GpuId = 0,
    duration: Annotated[int, Query(ge=1, le=60, description="Minutes.")] = 5,
) -> Data[told.Temperature]:
    """Show how the temperature of a GPU went over the last minutes."""
    trend = await readings.trend(context, context.views.one(str(gpu_id)), duration)
    return Data(data=told.temperature(duration, trend))


@router.get("/memory/available", responses=_LOOKS)
async def read_available(context: ContextDep, gpu_id: GpuId = 0) -> Data[MemoryAvailable]:
    """Show how much memory of a GPU may be promised yet."""
    view = context.views.one(str(gpu_id))
    return Data(
        data=MemoryAvailable(gpu_id=view.index, available_mb=_available(context, view.uuid))
    )


@router.post(
    "/memory/allocate",
    responses=_may(Code.NO_SUCH_GPU, Code.INVALID, Code.CONFLICT, Code.TIMEOUT, Code.FORBIDDEN),
)
async def allocate(
    request: Request, context: ContextDep, by: By, wish: told.AllocateMemory
) -> Data[MemoryAllocated]:
    """Keep memory for the process that asks, or for `pid`; the answer comes when it is free."""
    gpu = context.views.one(str(wish.gpu_id)).uuid
    size = max(1, round(wish.required_mb * told.MB))
    by = holder(by, wish.pid)
    work = promise(context, by, name=wish.allocation_id, gpu=gpu, size=size, wait=_WAIT)
    given = await cancel_on_disconnect(request, work)
    left = _available(context, gpu)
    data = MemoryAllocated(
        allocation_id=given.id, allocated_mb=given.size / told.MB, available_mb=left
    )
    return Data(data=data)


@router.post("/memory/deallocate", responses=_may(Code.NOT_FOUND, Code.INVALID))
async def deallocate(
    context: ContextDep, by: By, wish: told.DeallocateMemory
) -> Data[MemoryDeallocated]:
    """Give memory back."""
    name = wish.allocation_id
    answer = await context.channel.order(commands.Deallocate, by=by, id=name)
    left = sum(_available(context, gpu) for gpu in answer.gpus)
    return Data(data=MemoryDeallocated(allocation_id=name, available_mb=left))


@router.get("/throttle/status", responses=_LOOKS)
async def read_throttling(
    context: ContextDep, gpu_id: Annotated[int | None, Query(ge=0, le=1023)] = None
) -> Data[Throttled]:
    """Show how far work is to be slowed down on a GPU, or on the one that does worst."""
    views = context.views.gpus if gpu_id is None else (context.views.one(str(gpu_id)),)
    if not views:
        raise ProblemError(Code.NO_SUCH_GPU, "There is no GPU.")
    worst = min(views, key=lambda view: view.multiplier)
    state = told.metrics(worst).state
    data = Throttled(gpu_id=worst.index, current_state=state, **vars(told.throttling(worst)))
    return Data(data=data)


@router.post("/monitoring/start", responses=_may())
async def start_monitoring(context: ContextDep) -> Message:
    """Say that all GPUs are watched: they are for as long as the daemon runs."""
    return Message(message=f"{len(context.views.gpus)} GPUs are watched.")


@router.post("/monitoring/stop", responses=_may())
async def stop_monitoring(context: ContextDep) -> Message:
    """Say that the watching goes on: by it each GPU is given back in time."""
    count = len(context.views.gpus)
    return Message(message=f"{count} GPUs are watched for as long as the daemon runs.")


@router.get("/config", responses=_may())
async def read_config(request: Request, context: ContextDep) -> Data[told.Configuration]:
    """Show the configuration."""
    held = context.settings.held.config
    return Data(data=told.config(held, _history_size(request)))


@router.put("/config", responses=_may(Code.INVALID, Code.CONFLICT))
async def change_config(
    request: Request, context: ContextDep, by: By, wish: told.ConfigChange
) -> Changed:
    """Change some keys, all of them or none; `history_size` until the service is replaced."""
    settings = told.as_settings(wish)
    if settings:
        await change(context, by, settings)
    if wish.history_size is not None:
        request.app.state.history_size = wish.history_size
    held = context.settings.held.config
    return Changed(message="Configuration updated", data=told.config(held, _history_size(request)))


def _history_size(request: Request) -> int:
    """Return of how many readings at most these clients are told."""
    return int(getattr(request.app.state, "history_size", _HISTORY))


def _available(context: ApiContext, gpu: str) -> float:
    view = context.views.gpu(gpu)
    left = 0 if view is None else budget(view, context.views.host.allocations).available
    return left / told.MB
