"""The routes of the GPU Management System, by the functions of Sentinel's own routes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response

from sentinel.api import history_queries
from sentinel.api.bodies import ProblemError, explain
from sentinel.api.context import (
    ApiContext,
    By,
    ClientHistory,
    ContextDep,
    cancel_on_disconnect,
    problems,
)
from sentinel.api.history_queries import fit_trend
from sentinel.api.routes import compat_schemas
from sentinel.api.routes.compat_schemas import Monitoring
from sentinel.api.routes.history import temperatures
from sentinel.api.routes.reservations import allocate_memory, resolve_holder
from sentinel.api.serializers import budget
from sentinel.config.build import build_config
from sentinel.errors import NoSuchGpuError
from sentinel.protocol import commands
from sentinel.protocol.history_types import Direction, TemperatureTrend
from sentinel.protocol.problem import Code
from sentinel.protocol.views import GpuView
from sentinel.units import format_indices

#: The shortest span to search: not every second has a reading.
_MIN_SPAN_S = 60

T = TypeVar("T")

#: The keys of the thresholds that count only with ``throttle.pace`` = ``full``.
_OF_MEMORY = frozenset({"memory_optimal", "memory_normal", "memory_critical"})

#: The beginning of all paths.
PREFIX = "/api/gpu"

#: The maximum wait for memory.
_WAIT_S = 30.0
#: The minutes of the trend in the status, from its dashboard.
_TREND_MINUTES = 5
GpuId = Annotated[int, Query(ge=0, le=1023, description="nvidia-smi's index.")]

router = APIRouter(prefix=PREFIX, tags=["gpu manager"])


class _ConfigRoute(APIRoute):
    """A route whose errors list the keys of a configuration."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_errors(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                code, detail = explain(error, compat_schemas.ConfigChange.model_fields)
                raise ProblemError(code, f"{detail} {compat_schemas.list_keys()}") from None

        return handle_errors


def encode_error(detail: str) -> bytes:
    """Encode an error of these routes, also for a path or a method that they do not have."""
    return compat_schemas.Failed(error=detail).model_dump_json().encode()


class Data(BaseModel, Generic[T]):
    """A successful response."""

    success: Literal[True] = True
    data: T


class Message(BaseModel):
    """A successful command, as a sentence."""

    success: Literal[True] = True
    message: str


class Changed(Data[compat_schemas.Configuration]):
    """The new configuration."""

    message: str


class AllGpus(BaseModel):
    """All GPUs."""

    gpu_count: int
    gpus: list[compat_schemas.ManagedGpu]


class MetricsHistory(BaseModel):
    """Readings, newest last."""

    count: int
    metrics: list[compat_schemas.Past]


class MemoryAvailable(BaseModel):
    """The memory of a GPU that can still be allocated."""

    gpu_id: int
    available_mb: float


class MemoryAllocated(BaseModel):
    """A new allocation, and the memory that is still available."""

    allocation_id: str
    allocated_mb: float
    available_mb: float


class MemoryDeallocated(BaseModel):
    """An ended allocation, and the memory that is available."""

    allocation_id: str
    available_mb: float


class Throttled(compat_schemas.Throttling):
    """The required slowdown of work, and the GPU."""

    gpu_id: int
    current_state: compat_schemas.State


def _errors(*codes: Code) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of these routes, those of the middleware included."""
    known = problems(*codes)
    schema = {"$ref": f"#/components/schemas/{compat_schemas.Failed.__name__}"}
    for error in known.values():
        error["content"] = {"application/json": {"schema": schema}}
    known[Code.UNAVAILABLE.status.value]["model"] = compat_schemas.Failed  # declares the schema
    return known


_READ = _errors(Code.NO_SUCH_GPU)


@router.get("/status", responses=_READ)
async def read_status(
    request: Request, context: ContextDep, gpu_id: GpuId = 0
) -> Data[compat_schemas.ManagedGpu]:
    """Read the state of one GPU."""
    return Data(data=await _status(request, context, _gpu(context, gpu_id)))


@router.get("/status/all", responses=_READ)
async def read_all(request: Request, context: ContextDep) -> Data[AllGpus]:
    """Read the state of all GPUs."""
    gpus = [await _status(request, context, view) for view in context.views.gpus]
    return Data(data=AllGpus(gpu_count=len(gpus), gpus=gpus))


@router.get("/metrics", responses=_READ)
async def read_metrics(context: ContextDep, gpu_id: GpuId = 0) -> Data[compat_schemas.Metrics]:
    """Read the last reading of one GPU."""
    return Data(data=compat_schemas.metrics(_gpu(context, gpu_id)))


@router.get("/metrics/history", responses=_READ)
async def read_history(
    request: Request,
    context: ContextDep,
    gpu_id: Annotated[int | None, Query(ge=0, le=1023)] = None,
    limit: Annotated[int, Query(ge=1, le=3600)] = 100,
) -> Data[MetricsHistory]:
    """List the readings of one GPU, or of all, newest last."""
    monitoring = _monitoring(request)
    size = min(limit, monitoring.history_size)
    views = context.views.gpus if gpu_id is None else (_gpu(context, gpu_id),)
    found = [
        compat_schemas.past(view, row)
        for view in views
        for row in await _readings(request, view, size)
    ]
    found.sort(key=lambda reading: reading.timestamp)
    return Data(data=MetricsHistory(count=len(found[-size:]), metrics=found[-size:]))


@router.get("/temperature/trend", responses=_READ)
async def read_trend(
    request: Request,
    context: ContextDep,
    gpu_id: GpuId = 0,
    duration: Annotated[int, Query(ge=1, le=60, description="Minutes.")] = 5,
) -> Data[compat_schemas.Temperature]:
    """Compute the trend of a GPU's temperature over the last minutes."""
    uuid = _gpu(context, gpu_id).uuid
    trend = await _temperature_trend(request, uuid, duration)
    return Data(data=compat_schemas.temperature(trend))


@router.get("/memory/available", responses=_READ)
async def read_available(context: ContextDep, gpu_id: GpuId = 0) -> Data[MemoryAvailable]:
    """Read how much memory of a GPU can still be allocated."""
    view = _gpu(context, gpu_id)
    return Data(
        data=MemoryAvailable(gpu_id=view.index, available_mb=_available(context, view.uuid))
    )


@router.post(
    "/memory/allocate",
    responses=_errors(Code.NO_SUCH_GPU, Code.CONFLICT, Code.TIMEOUT, Code.FORBIDDEN),
)
async def allocate(
    request: Request, context: ContextDep, by: By, body: compat_schemas.AllocateMemory
) -> Data[MemoryAllocated]:
    """Allocate memory to the caller or to `pid`; the response is sent when it is free."""
    view, id_ = _gpu(context, body.gpu_id), body.allocation_id
    gpu = view.uuid
    # A POST is no PUT.
    if compat_schemas.find_allocation(id_, (view,), context.views.host.allocations) is not None:
        raise ProblemError(Code.CONFLICT, f"GPU {view.index} has an allocation {id_!r}.")
    size = max(1, round(body.required_mb * compat_schemas.MB))
    by = resolve_holder(by, body.pid)
    own_id = compat_schemas.own_id(id_, view.index)
    work = allocate_memory(context, by, id_=own_id, gpu=gpu, size=size, wait_s=_WAIT_S)
    allocated = await cancel_on_disconnect(request, work)
    data = MemoryAllocated(
        allocation_id=id_,
        allocated_mb=allocated.size / compat_schemas.MB,
        available_mb=_available(context, gpu),
    )
    return Data(data=data)


@router.post("/memory/deallocate", responses=_errors(Code.NOT_FOUND))
async def deallocate(
    context: ContextDep, by: By, body: compat_schemas.DeallocateMemory
) -> Data[MemoryDeallocated]:
    """End an allocation."""
    id_, named = body.allocation_id, body.gpu_id
    views = context.views.gpus if named is None else (_gpu(context, named),)
    found = compat_schemas.find_allocation(id_, views, context.views.host.allocations)
    if found is None:
        what = f"There is no allocation {id_!r}, or several GPUs have one: name its gpu_id."
        what = what if named is None else f"GPU {named} has no allocation {id_!r}."
        raise ProblemError(Code.NOT_FOUND, what)
    kind = commands.GrantKind.ALLOCATION
    await context.supervisor.execute(commands.CancelGrant, by=by, kind=kind, id=found.id)
    available = _available(context, found.gpu)
    return Data(data=MemoryDeallocated(allocation_id=id_, available_mb=available))


@router.get("/throttle/status", responses=_READ)
async def read_throttling(
    context: ContextDep, gpu_id: Annotated[int | None, Query(ge=0, le=1023)] = None
) -> Data[Throttled]:
    """Read the required slowdown of work on a GPU, or on the one with the worst health."""
    views = context.views.gpus if gpu_id is None else (_gpu(context, gpu_id),)
    if not views:
        raise ProblemError(Code.NO_SUCH_GPU, "There is no GPU.")
    slowdowns = [(compat_schemas.throttling(view), view) for view in views]
    slowdown, worst = min(slowdowns, key=lambda one: one[0].speed_multiplier)
    state = compat_schemas.metrics(worst).state
    return Data(data=Throttled(gpu_id=worst.index, current_state=state, **vars(slowdown)))


@router.post("/monitoring/start", responses=_errors())
async def start_monitoring(request: Request, context: ContextDep) -> Message:
    """Include readings in the history and the trend from now on, as from the start on."""
    _monitoring(request).start()
    return Message(message=f"{len(context.views.gpus)} GPUs are monitored.")


@router.post("/monitoring/stop", responses=_errors())
async def stop_monitoring(request: Request, context: ContextDep) -> Message:
    """Include no readings in the history and the trend until the next start.

    The daemon goes on reading its GPUs, since no GPU could be yielded in time otherwise.
    """
    _monitoring(request).stop()
    count = len(context.views.gpus)
    why = "Sentinel itself goes on reading them, to yield each in time."
    return Message(message=f"The monitoring of {count} GPUs is stopped. {why}")


@router.get("/config", responses=_errors())
async def read_config(request: Request, context: ContextDep) -> Data[compat_schemas.Configuration]:
    """Read the configuration."""
    return Data(
        data=compat_schemas.config(build_config(context.settings.given), _monitoring(request))
    )


async def change_config(
    request: Request, context: ContextDep, by: By, body: compat_schemas.ConfigChange
) -> Changed:
    """Change some keys, all of them or none.

    `history_size` and `monitor_interval` hold until the API process restarts.
    """
    changes = compat_schemas.as_settings(body)
    if changes:
        await context.settings.change(by, changes, names=compat_schemas.NAMES)
    monitoring = _monitoring(request)
    monitoring.history_size = body.history_size or monitoring.history_size
    monitoring.interval_s = body.monitor_interval or monitoring.interval_s
    settings = build_config(context.settings.given)
    message = "Configuration updated"
    if settings.throttle != "full" and any(name in _OF_MEMORY for name in body.model_fields_set):
        message += "; memory counts for states only with `--throttle full`"
    return Changed(message=message, data=compat_schemas.config(settings, monitoring))


router.add_api_route(
    "/config",
    change_config,
    methods=["PUT"],
    responses=_errors(Code.CONFLICT),
    route_class_override=_ConfigRoute,
)


def _gpu(context: ApiContext, index: int) -> GpuView:
    """Find a GPU by the only name that these clients have for it.

    Raises:
        ProblemError: There is none, or the GPUs are not known yet.
    """
    try:
        return context.views.one(str(index))
    except NoSuchGpuError as error:
        known = format_indices(view.index for view in context.views.gpus) or "none"
        detail = f"gpu_id: {error.what}; there are: {known}."
        raise ProblemError(Code.NO_SUCH_GPU, detail) from None


def _monitoring(request: Request) -> Monitoring:
    """Read which readings these clients get."""
    monitoring: Monitoring = request.app.state.monitoring
    return monitoring


async def _status(
    request: Request, context: ApiContext, view: GpuView
) -> compat_schemas.ManagedGpu:
    """Describe one GPU; the trend is unknown if the history cannot be read."""
    trend = Direction.UNKNOWN
    with contextlib.suppress(ProblemError):
        trend = (await _temperature_trend(request, view.uuid, _TREND_MINUTES)).trend
    settings, allocations = build_config(context.settings.given), context.views.host.allocations
    return compat_schemas.status(view, settings, allocations, trend)


def _available(context: ApiContext, gpu: str) -> float:
    view = context.views.gpu(gpu)
    available = 0 if view is None else budget(view, context.views.host.allocations).available
    return available / compat_schemas.MB


async def _readings(request: Request, view: GpuView, limit: int) -> list[dict[str, Any]]:
    """Read the last readings of a GPU while it was monitored, oldest first.

    Raises:
        ProblemError: The history cannot be read.
    """
    monitoring = _monitoring(request)
    step = monitoring.interval_s
    until = int(time.time())
    since = until - max(_MIN_SPAN_S, 2 * limit * step)
    rows = await ClientHistory(request).query(
        lambda database: history_queries.readings(database, view.uuid, since, until, step)
    )
    offset = time.time() - time.monotonic()
    return [
        row
        for row in rows
        if all(monitoring.includes(row["at"] + part - offset) for part in (0, step - 1))
    ][-limit:]


async def _temperature_trend(request: Request, uuid: str, minutes: int) -> TemperatureTrend:
    """Fit the trend of a GPU's temperature while it was monitored.

    Raises:
        ProblemError: The history cannot be read.
    """
    monitoring = _monitoring(request)
    found = await temperatures(ClientHistory(request), uuid, minutes)
    offset = time.time() - time.monotonic()
    included = [(at, degrees) for at, degrees in found if monitoring.includes(at - offset)]
    return fit_trend(included, uuid, minutes)
