"""Sessions: settings of some GPUs under a name, laid over the daemon's."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path

from sentinel.api.bodies import ProblemError, SessionRequest
from sentinel.api.context import ApiContext
from sentinel.api.routes.dependencies import By, ContextDep, problems
from sentinel.api.serializers import session
from sentinel.api.settings import check_keys
from sentinel.config.specs import check_workload
from sentinel.protocol.api_types import Outcome
from sentinel.protocol.commands import Caller, EndSession, Level, StartSession
from sentinel.protocol.problem import Code
from sentinel.protocol.settings_types import Sessions, SessionStarted

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

#: The time for a change to be written to the file.
_WRITE_TIMEOUT_S = 5.0
#: The caller of commands that undo a request.
_THIS_PROCESS = Caller(via="sentinel", level=Level.OWN)


@router.get("", responses=problems())
async def read_sessions(context: ContextDep) -> Sessions:
    """List all sessions."""
    now = time.monotonic()
    known = context.views.sessions
    return Sessions(sessions=tuple(session(one, context.views, now) for one in known))


@router.post("", status_code=201, responses=problems(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU))
async def start_session(context: ContextDep, by: By, body: SessionRequest) -> SessionStarted:
    """Give GPUs settings of their own, for `seconds` or until the session is ended.

    They are laid over the daemon's settings, and over those for single GPUs. A GPU is in one
    session at most. The same request again changes nothing and has the same response.
    """
    gpus = context.views.select(body.gpus)
    check_keys(body.settings, single=True)
    context.check_trust(by, body.settings, {})
    if "workload" in body.settings:
        check_workload(body.settings["workload"])
    # Before a stressor is stopped for a session that could not be kept.
    why = await context.session_writer.test_disk(_WRITE_TIMEOUT_S)
    if why is not None:
        raise ProblemError(Code.UNAVAILABLE, f"No session was started: {why}.")
    was_there = context.views.session(body.name) is not None
    await context.supervisor.execute(
        StartSession,
        by=by,
        name=body.name,
        gpus=gpus,
        settings=body.settings,
        seconds=body.seconds,
    )
    why = await context.session_writer.wait_written(_WRITE_TIMEOUT_S)
    if why is not None and not was_there:
        context.supervisor.post(EndSession, by=_THIS_PROCESS, name=body.name)
    if why is not None:
        raise ProblemError(Code.UNAVAILABLE, f"No session was started: {why}.")
    started = context.views.session(body.name)
    if started is None:
        raise ProblemError(Code.CONFLICT, f"The session {body.name} was ended at once.")
    return SessionStarted(session=session(started, context.views, time.monotonic()))


@router.delete("/{name}", responses=problems(Code.NOT_FOUND, Code.INVALID))
async def end_session(name: Annotated[str, Path()], context: ContextDep, by: By) -> Outcome:
    """End a session: its GPUs have the daemon's settings again.

    If that cannot be stored, the response is an error: another daemon would restore it.
    """
    try:
        reply = await context.supervisor.execute(EndSession, by=by, name=name)
    except ProblemError as error:
        if error.code is Code.NOT_FOUND:  # maybe ended before, when that could not be stored
            await _stored(context, name)
        raise
    await _stored(context, name)
    return Outcome(text=reply.text, gpus=reply.gpus)


async def _stored(context: ApiContext, name: str) -> None:
    """Wait until the file on disk has the sessions as they are.

    Raises:
        ProblemError: It cannot be written.
    """
    why = await context.session_writer.wait_written(_WRITE_TIMEOUT_S)
    if why is not None:
        what = f"Session {name} is over, but another daemon would restore it: {why}."
        raise ProblemError(Code.UNAVAILABLE, what)
