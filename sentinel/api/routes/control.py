"""Commands to the daemon and its GPUs; each response is sent when the command took effect."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request

from sentinel.api.bodies import EmptyRequest, PauseRequest, ProblemError, ResumeRequest
from sentinel.api.context import ApiContext
from sentinel.api.routes.dependencies import By, ContextDep, cancel_on_disconnect, problems
from sentinel.api.snapshots import driver_released, stressors_gone
from sentinel.protocol.api_types import Outcome
from sentinel.protocol.commands import Caller, CommandReply, PauseGpus, ResumeGpus, StopDaemon
from sentinel.protocol.problem import Code

router = APIRouter(tags=["control"])

_COMMAND = problems(Code.INVALID, Code.CONFLICT)
_SELECT = problems(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU)
_SELECT_AND_WAIT = problems(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU, Code.TIMEOUT)


@router.post("/v1/stop", responses=_COMMAND)
async def stop(context: ContextDep, by: By, _: EmptyRequest | None = None) -> Outcome:
    """Release all GPUs and end the daemon. The response is sent before that is done."""
    return _outcome(await context.supervisor.execute(StopDaemon, by=by))


@router.post("/v1/restart", responses=_COMMAND)
async def restart(context: ContextDep, by: By, _: EmptyRequest | None = None) -> Outcome:
    """End the daemon, and start it again with its arguments and environment.

    The response is sent before that is done. Settings that clients changed and did not save end.
    """
    if context.spec.managed:
        raise ProblemError(
            Code.CONFLICT, "systemd runs this daemon: use `systemctl restart sentinel`."
        )
    return _outcome(await context.supervisor.execute(StopDaemon, by=by, restart=True))


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
