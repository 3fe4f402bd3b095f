"""Looks: the state of all, of one GPU, and whether the daemon gets on."""

from __future__ import annotations

import time

from fastapi import APIRouter

from sentinel.api.http.errors import ProblemError
from sentinel.api.routes.dependencies import ContextDep, may
from sentinel.api.state.serializers import gpu_status, status
from sentinel.api.state.snapshots import FRESH
from sentinel.protocol.api_types import Code, DaemonHealth, SingleGpu, Status

router = APIRouter(tags=["looking"])


@router.get("/v1/status", responses=may())
async def read_status(context: ContextDep) -> Status:
    """Show the daemon, its GPUs and its reservations."""
    return status(context.spec, context.views)


@router.get("/v1/gpus/{selector}", responses=may(Code.NO_SUCH_GPU, Code.INVALID))
async def read_gpu(selector: str, context: ContextDep) -> SingleGpu:
    """Show one GPU, by index, UUID or its unique beginning, or PCI address."""
    view = context.views.one(selector)
    return SingleGpu(**vars(gpu_status(view, context.views, time.monotonic())))


@router.get("/v1/health", responses=may())
async def read_health(context: ContextDep) -> DaemonHealth:
    """Say that the daemon gets on: 200 while what it shows is fresh, else 503."""
    host = context.views.host
    age = time.monotonic() - host.at
    if not context.views.fresh:
        detail = f"The daemon has shown nothing for {age:.0f} s; {FRESH:g} s are allowed."
        raise ProblemError(Code.UNAVAILABLE, detail)
    return DaemonHealth(phase=host.phase, age_s=round(max(0.0, age), 3))
