"""Orders to the daemon as a whole and to single GPUs, each answered when it has taken effect."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request

from sentinel.api.context import ApiContext
from sentinel.api.requests import EmptyRequest, PauseRequest, ResumeRequest, StopRequest
from sentinel.api.routes.dependencies import By, ContextDep, cancel_on_disconnect, may
from sentinel.api.state.conditions import memory_back, released
from sentinel.protocol.api_types import Code, Outcome
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import CommandReply, Drain, PauseGpus, Resume, ResumeGpus, ShutDown

router = APIRouter(tags=["ordering"])

_REFUSED = may(Code.INVALID, Code.CONFLICT)
_WAITS = may(Code.INVALID, Code.CONFLICT, Code.TIMEOUT)
_CHOOSES = may(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU)
_CHOOSES_AND_WAITS = may(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU, Code.TIMEOUT)


@router.post("/v1/start", responses=_REFUSED)
async def start(context: ContextDep, by: By, _: EmptyRequest | None = None) -> Outcome:
    """Occupy idle GPUs, from now on."""
    return _done(await context.channel.order(Resume, by=by))


@router.post("/v1/stop", responses=_WAITS)
async def stop(
    request: Request, context: ContextDep, by: By, wish: StopRequest | None = None
) -> Outcome:
    """Let go of every GPU and start on none; the daemon stays.

    The answer comes when all memory is back. After a timeout the order holds all the same.
    """
    return await cancel_on_disconnect(request, _stop(context, by, wish or StopRequest()))


@router.post("/v1/shutdown", responses=_REFUSED)
async def shut_down(context: ContextDep, by: By, _: EmptyRequest | None = None) -> Outcome:
    """Let go of every GPU and end the daemon. The answer comes before that is done."""
    return _done(await context.channel.order(ShutDown, by=by))


@router.post("/v1/pause", responses=_CHOOSES_AND_WAITS)
async def pause(
    request: Request, context: ContextDep, by: By, wish: PauseRequest | None = None
) -> Outcome:
    """Let go of GPUs, all where none is named, and keep off them.

    The answer comes when their memory is back, or, with `release`, when the driver is let go of.
    After a timeout the order holds all the same.
    """
    return await cancel_on_disconnect(request, _pause(context, by, wish or PauseRequest()))


@router.post("/v1/resume", responses=_CHOOSES)
async def resume(context: ContextDep, by: By, wish: ResumeRequest | None = None) -> Outcome:
    """End the pause of GPUs, of all where none is named."""
    gpus = context.views.select((wish or ResumeRequest()).gpus)
    return _done(await context.channel.order(ResumeGpus, by=by, gpus=gpus))


async def _stop(context: ApiContext, by: Caller, wish: StopRequest) -> Outcome:
    deadline = time.monotonic() + wish.wait_s
    answer = await context.channel.order(Drain, by=by)
    if wish.wait_s > 0:
        await memory_back(context.views, (), deadline)
    return _done(answer)


async def _pause(context: ApiContext, by: Caller, wish: PauseRequest) -> Outcome:
    deadline = time.monotonic() + wish.wait_s
    gpus = context.views.select(wish.gpus)
    answer = await context.channel.order(
        PauseGpus, by=by, gpus=gpus, seconds=wish.seconds, release=wish.release
    )
    if wish.wait_s > 0:
        if wish.release:  # nothing is held by then
            await released(context.views, deadline)
        else:
            await memory_back(context.views, gpus, deadline)
    return _done(answer)


def _done(answer: CommandReply) -> Outcome:
    return Outcome(text=answer.text, gpus=answer.gpus)
