"""Orders to the daemon as a whole and to single GPUs, each answered when it has taken effect."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request

from sentinel.api.context import Desk
from sentinel.api.http.errors import Code
from sentinel.api.routes.dependencies import AtDesk, By, attended, may
from sentinel.api.schemas.status import Done, Nothing, Pause, Resume, Stop
from sentinel.api.state.conditions import memory_back, released
from sentinel.protocol.caller import Asker
from sentinel.protocol.commands import Answer, Occupy, PauseGpus, ResumeGpus, ShutDown, Vacate

router = APIRouter(tags=["ordering"])

_REFUSED = may(Code.INVALID, Code.CONFLICT)
_WAITS = may(Code.INVALID, Code.CONFLICT, Code.TIMEOUT)
_CHOOSES = may(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU)
_CHOOSES_AND_WAITS = may(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU, Code.TIMEOUT)


@router.post("/v1/start", responses=_REFUSED)
async def start(desk: AtDesk, by: By, _: Nothing | None = None) -> Done:
    """Occupy idle GPUs, from now on."""
    return _done(await desk.channel.order(Occupy, by=by))


@router.post("/v1/stop", responses=_WAITS)
async def stop(request: Request, desk: AtDesk, by: By, wish: Stop | None = None) -> Done:
    """Let go of every GPU and start on none; the daemon stays.

    The answer comes when all memory is back. After a timeout the order holds all the same.
    """
    return await attended(request, _stop(desk, by, wish or Stop()))


@router.post("/v1/shutdown", responses=_REFUSED)
async def shut_down(desk: AtDesk, by: By, _: Nothing | None = None) -> Done:
    """Let go of every GPU and end the daemon. The answer comes before that is done."""
    return _done(await desk.channel.order(ShutDown, by=by))


@router.post("/v1/pause", responses=_CHOOSES_AND_WAITS)
async def pause(request: Request, desk: AtDesk, by: By, wish: Pause | None = None) -> Done:
    """Let go of GPUs, all where none is named, and keep off them.

    The answer comes when their memory is back, or, with `release`, when the driver is let go of.
    After a timeout the order holds all the same.
    """
    return await attended(request, _pause(desk, by, wish or Pause()))


@router.post("/v1/resume", responses=_CHOOSES)
async def resume(desk: AtDesk, by: By, wish: Resume | None = None) -> Done:
    """End the pause of GPUs, of all where none is named."""
    gpus = desk.views.select((wish or Resume()).gpus)
    return _done(await desk.channel.order(ResumeGpus, by=by, gpus=gpus))


async def _stop(desk: Desk, by: Asker, wish: Stop) -> Done:
    deadline = time.monotonic() + wish.wait_s
    answer = await desk.channel.order(Vacate, by=by)
    if wish.wait_s > 0:
        await memory_back(desk.views, (), deadline)
    return _done(answer)


async def _pause(desk: Desk, by: Asker, wish: Pause) -> Done:
    deadline = time.monotonic() + wish.wait_s
    gpus = desk.views.select(wish.gpus)
    answer = await desk.channel.order(
        PauseGpus, by=by, gpus=gpus, seconds=wish.seconds, release=wish.release
    )
    if wish.wait_s > 0:
        if wish.release:  # nothing is held by then
            await released(desk.views, deadline)
        else:
            await memory_back(desk.views, gpus, deadline)
    return _done(answer)


def _done(answer: Answer) -> Done:
    return Done(text=answer.text, gpus=list(answer.gpus))
