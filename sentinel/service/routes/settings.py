"""New settings for a daemon that goes on: read anew, or given."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request

from sentinel.control import Answer, Asker, Configure, Occupy, Phase, Vacate
from sentinel.service.desk import Desk
from sentinel.service.models import Configured, Nothing, Restart
from sentinel.service.problems import Code
from sentinel.service.rereading import Gathered
from sentinel.service.routes.shared import AtDesk, By, attended, may
from sentinel.service.waiting import memory_back

__all__ = ["router"]

router = APIRouter(tags=["settings"])


@router.post("/v1/reload", responses=may(Code.INVALID, Code.CONFLICT))
async def reload(desk: AtDesk, by: By, _: Nothing | None = None) -> Configured:
    """Read the settings anew, and take over all of them or, where one is wrong, none."""
    async with desk.reconfiguring:
        new = await desk.settings.gather(desk.settings.flags)
        answer = await _configure(desk, by, new)
    return Configured(text=answer.text)


@router.post("/v1/restart", responses=may(Code.INVALID, Code.CONFLICT, Code.TIMEOUT))
async def restart(
    request: Request, desk: AtDesk, by: By, wish: Restart | None = None
) -> Configured:
    """Let go of every GPU, take over new settings, and occupy anew.

    Where a setting is wrong or the memory is not back in time, all goes on as before.
    """
    return await attended(request, _restart(desk, by, wish or Restart()))


async def _restart(desk: Desk, by: Asker, wish: Restart) -> Configured:
    deadline = time.monotonic() + wish.wait_s
    async with desk.reconfiguring:
        flags = desk.settings.flags if wish.settings is None else wish.settings
        new = await desk.settings.gather(flags)  # before anything is let go of
        occupied = desk.views.host.phase not in {Phase.VACATED, Phase.RELEASED}
        try:
            await desk.channel.order(Vacate, by=by)
            await memory_back(desk.views, (), deadline)
            answer = await _configure(desk, by, new)
        except BaseException:
            if occupied:
                desk.channel.tell(Occupy, by=by)
            raise
        desk.settings.flags = dict(flags)
        await desk.channel.order(Occupy, by=by)
    return Configured(text=answer.text)


async def _configure(desk: Desk, by: Asker, new: Gathered) -> Answer:
    return await desk.channel.order(Configure, by=by, given=new.given, overrides=new.overrides)
