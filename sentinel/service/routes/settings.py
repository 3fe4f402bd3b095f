"""New settings for a daemon that goes on: read anew, or given."""

from __future__ import annotations

from fastapi import APIRouter

from sentinel.control import Answer, Asker, Configure, Occupy
from sentinel.service.desk import Desk
from sentinel.service.models import Configured, Nothing, Restart
from sentinel.service.problems import Code
from sentinel.service.rereading import Gathered
from sentinel.service.routes.shared import AtDesk, By, may

__all__ = ["router"]

router = APIRouter(tags=["settings"])


@router.post("/v1/reload", responses=may(Code.INVALID, Code.CONFLICT))
async def reload(desk: AtDesk, by: By, _: Nothing | None = None) -> Configured:
    """Read the settings anew, and take over all of them or, where one is wrong, none."""
    async with desk.reconfiguring:
        new = await desk.settings.gather(desk.settings.flags)
        answer = await _configure(desk, by, new)
    return Configured(text=answer.text)


@router.post("/v1/restart", responses=may(Code.INVALID, Code.CONFLICT))
async def restart(desk: AtDesk, by: By, wish: Restart | None = None) -> Configured:
    """Take over new settings, and occupy anew with them.

    Stressors for which they change something end, and start again. Where a setting is wrong, all
    goes on as before.
    """
    new_flags = (wish or Restart()).settings
    async with desk.reconfiguring:
        flags = desk.settings.flags if new_flags is None else new_flags
        new = await desk.settings.gather(flags)
        answer = await _configure(desk, by, new)
        desk.settings.flags = dict(flags)
        await desk.channel.order(Occupy, by=by)
    return Configured(text=answer.text)


async def _configure(desk: Desk, by: Asker, new: Gathered) -> Answer:
    return await desk.channel.order(Configure, by=by, given=new.given, overrides=new.overrides)
