"""The settings of a running daemon, and sessions: settings of some GPUs under a name."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path

from sentinel.api import serializers
from sentinel.api.bodies import ProblemError, SessionRequest, SettingsChange
from sentinel.api.context import THIS_PROCESS, By, ContextDep, end_stored, problems
from sentinel.config.changes import check_keys, check_trusted
from sentinel.config.specs import check_workload
from sentinel.protocol.api_types import Outcome, Sessions, SessionStarted, Settings
from sentinel.protocol.commands import EndSession, StartSession
from sentinel.protocol.problem import Code

settings = APIRouter(tags=["settings"])
sessions = APIRouter(prefix="/v1/sessions", tags=["sessions"])
ROUTERS = (settings, sessions)

_CHANGE = problems(Code.CONFLICT)
_CHANGE_SOME = problems(Code.CONFLICT, Code.NO_SUCH_GPU)


@settings.get("/v1/settings", responses=problems())
async def read_settings(context: ContextDep) -> Settings:
    """Read all settings, and the source of each; those of a session are among its GPUs'."""
    return Settings(settings=context.settings.in_effect())


@settings.patch("/v1/settings", responses=_CHANGE_SOME)
async def change_settings(context: ContextDep, by: By, body: SettingsChange) -> Settings:
    """Change single settings, of all GPUs or of some, and keep all others; null removes a flag.

    The files are reread. Stressors whose settings do not change continue, and no further GPU is
    occupied. If a setting is invalid, alone or with the others, nothing changes. With `save`, the
    change is also in the daemon's own file, which overrides the configuration file, and null
    removes it there; what is fixed at the start changes with the next start.
    """
    gpus = context.views.select(body.gpus)
    return await context.settings.change(by, body.settings, gpus, save=body.save)


@settings.post("/v1/reload", responses=_CHANGE)
async def reload(context: ContextDep, by: By) -> Outcome:
    """Reread the settings, and apply all of them or, if one is invalid, none."""
    return Outcome(text=(await context.settings.change(by, {})).text)


# --- sessions --------------------------------------------------------------------------------


@sessions.get("", responses=problems())
async def read_sessions(context: ContextDep) -> Sessions:
    """List all sessions."""
    return Sessions(sessions=serializers.sessions(context.views))


@sessions.post("", status_code=201, responses=problems(Code.CONFLICT, Code.NO_SUCH_GPU))
async def start_session(context: ContextDep, by: By, body: SessionRequest) -> SessionStarted:
    """Give GPUs settings of their own, for `seconds` or until the session is ended.

    They are laid over the daemon's settings, and over those for single GPUs. A GPU is in one
    session at most. The same request again changes nothing and has the same response.
    """
    gpus = context.views.select(body.gpus)
    check_keys(body.settings, single=True)
    check_trusted(body.settings, context.settings.allowed_workloads(by))
    if "workload" in body.settings:
        await asyncio.to_thread(check_workload, body.settings["workload"])
    writer, otherwise = context.session_writer, "No session was started"
    # Before a stressor is stopped for a session that could not be kept.
    await writer.test_disk(otherwise)
    was_there = context.views.session(body.name) is not None
    await context.supervisor.execute(
        StartSession,
        by=by,
        name=body.name,
        gpus=gpus,
        settings=body.settings,
        seconds=body.seconds,
    )
    try:
        await writer.wait_written(otherwise)
    except ProblemError:
        if not was_there:
            context.supervisor.post(EndSession, by=THIS_PROCESS, name=body.name)
        raise
    started = context.views.session(body.name)
    if started is None:
        raise ProblemError(Code.CONFLICT, f"The session {body.name} was ended at once.")
    return SessionStarted(session=serializers.session(started, context.views))


@sessions.delete("/{name:path}", responses=problems(Code.NOT_FOUND))
async def end_session(name: Annotated[str, Path()], context: ContextDep, by: By) -> Outcome:
    """End a session: its GPUs have the daemon's settings again.

    If that cannot be stored, the response is an error: another daemon would restore it.
    """
    over = f"Session {name} has ended, but another daemon would restore it"
    return await end_stored(context, context.session_writer, over, EndSession, by=by, name=name)
