"""The state of the daemon and its GPUs, and the health check."""

from __future__ import annotations

import time

from fastapi import APIRouter

from sentinel.api.bodies import ProblemError
from sentinel.api.routes.dependencies import ContextDep, problems
from sentinel.api.serializers import gpu_status, status
from sentinel.api.snapshots import MAX_AGE_S
from sentinel.protocol.api_types import DaemonHealth, SingleGpu, Status
from sentinel.protocol.problem import Code

router = APIRouter(tags=["status"])


@router.get("/v1/status", responses=problems())
async def read_status(context: ContextDep) -> Status:
    """Read the state of the daemon, its GPUs, reservations and allocations."""
    return status(context.spec, context.views)


@router.get("/v1/gpus/{selector}", responses=problems(Code.NO_SUCH_GPU, Code.INVALID))
async def read_gpu(selector: str, context: ContextDep) -> SingleGpu:
    """Read the state of one GPU, by index, UUID or its unique beginning, or PCI address."""
    view = context.views.one(selector)
    return SingleGpu(**vars(gpu_status(view, context.views, time.monotonic())))


@router.get("/v1/health", responses=problems())
async def read_health(context: ContextDep) -> DaemonHealth:
    """Check the daemon: 200 while its state is recent, else 503."""
    host = context.views.host
    age = time.monotonic() - host.at
    if not context.views.fresh:
        detail = f"The daemon's state is {age:.0f} s old; the limit is {MAX_AGE_S:g} s."
        raise ProblemError(Code.UNAVAILABLE, detail)
    return DaemonHealth(phase=host.phase, age_s=round(max(0.0, age), 3))
