"""Commands to the daemon and its GPUs; each response is sent when the command took effect."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request

from sentinel.api.context import ApiContext
from sentinel.api.requests import EmptyRequest, PauseRequest, ResumeRequest, StopRequest
from sentinel.api.routes.dependencies import By, ContextDep, cancel_on_disconnect, problems
from sentinel.api.state.conditions import driver_released, stressors_gone
from sentinel.protocol.api_types import Outcome
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import CommandReply, Drain, PauseGpus, Resume, ResumeGpus, ShutDown
from sentinel.protocol.problem import Code

router = APIRouter(tags=["control"])

_COMMAND = problems(Code.INVALID, Code.CONFLICT)
_WAIT = problems(Code.INVALID, Code.CONFLICT, Code.TIMEOUT)
_SELECT = problems(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU)
_SELECT_AND_WAIT = problems(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU, Code.TIMEOUT)


@router.post("/v1/start", responses=_COMMAND)
async def start(context: ContextDep, by: By, _: EmptyRequest | None = None) -> Outcome:
    """Occupy idle GPUs from now on."""
    return _outcome(await context.supervisor.execute(Resume, by=by))


@router.post("/v1/stop", responses=_WAIT)
async def stop(
    request: Request, context: ContextDep, by: By, body: StopRequest | None = None
) -> Outcome:
    """Drain all GPUs: release them and occupy none; the daemon keeps running.

    The response is sent when all memory is free. After a timeout, the drain remains in effect.
    """
    return await cancel_on_disconnect(request, _stop(context, by, body or StopRequest()))


@router.post("/v1/shutdown", responses=_COMMAND)
async def shut_down(context: ContextDep, by: By, _: EmptyRequest | None = None) -> Outcome:
    """Release all GPUs and end the daemon. The response is sent before that is done."""
    return _outcome(await context.supervisor.execute(ShutDown, by=by))


@router.post("/v1/pause", responses=_SELECT_AND_WAIT)
async def pause(
    request: Request, context: ContextDep, by: By, body: PauseRequest | None = None
) -> Outcome:
    """Release GPUs, by default all, and do not occupy them.

    The response is sent when their memory is free or, with `release`, when the driver is released.
    After a timeout, the pause remains in effect.
    """
    return await cancel_on_disconnect(request, _pause(context, by, body or PauseRequest()))


@router.post("/v1/resume", responses=_SELECT)
async def resume(context: ContextDep, by: By, body: ResumeRequest | None = None) -> Outcome:
    """End the pause of GPUs, by default of all."""
    gpus = context.views.select((body or ResumeRequest()).gpus)
    return _outcome(await context.supervisor.execute(ResumeGpus, by=by, gpus=gpus))


async def _stop(context: ApiContext, by: Caller, body: StopRequest) -> Outcome:
    deadline = time.monotonic() + body.wait_s
    reply = await context.supervisor.execute(Drain, by=by)
    if body.wait_s > 0:
        await stressors_gone(context.views, (), deadline)
    return _outcome(reply)


async def _pause(context: ApiContext, by: Caller, body: PauseRequest) -> Outcome:
    deadline = time.monotonic() + body.wait_s
    gpus = context.views.select(body.gpus)
    reply = await context.supervisor.execute(
        PauseGpus, by=by, gpus=gpus, seconds=body.seconds, release=body.release
    )
    if body.wait_s > 0:
        if body.release:  # no memory is held then
            await driver_released(context.views, deadline)
        else:
            await stressors_gone(context.views, gpus, deadline)
    return _outcome(reply)


def _outcome(reply: CommandReply) -> Outcome:
    return Outcome(text=reply.text, gpus=reply.gpus)
