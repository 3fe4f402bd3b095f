"""Acknowledge the wrong results of a GPU that was repaired."""

from __future__ import annotations

import contextlib

from fastapi import APIRouter

from sentinel.api.bodies import AcknowledgeRequest, ProblemError
from sentinel.api.context import ApiContext
from sentinel.api.routes.dependencies import By, ContextDep, problems
from sentinel.host.verified_store import KnownGpu, select_known
from sentinel.protocol.api_types import Outcome
from sentinel.protocol.commands import AcknowledgeResults
from sentinel.protocol.problem import Code
from sentinel.units import format_count

router = APIRouter(prefix="/v1/acknowledge", tags=["control"])


@router.post("", responses=problems(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU))
async def acknowledge(context: ContextDep, by: By, body: AcknowledgeRequest) -> Outcome:
    """Take the wrong results of repaired GPUs as known: they no longer count as a fault.

    They stay counted, and who acknowledged them, when and why is stored with them, on disk before
    the response is sent. A later wrong result counts at once. A burn-in with the verdict FAIL is
    not acknowledged: it counts until the GPU has passed one.
    """
    known = _known(context)
    chosen = select_known(body.gpus, known)
    done = await context.verified.acknowledge(chosen, str(by), body.reason)
    names = {gpu.uuid: f"GPU {gpu.uuid if gpu.index is None else gpu.index}" for gpu in known}
    if not done:
        listed = ", ".join(names[uuid] for uuid in chosen)
        raise ProblemError(Code.CONFLICT, f"No wrong results count against {listed}.")
    for one in done:
        # It is on disk. A daemon that is ending takes no more commands, and has no more events.
        with contextlib.suppress(ProblemError):
            await context.supervisor.execute(
                AcknowledgeResults,
                by=by,
                gpu=one.uuid,
                reason=body.reason,
                errors=one.errors,
                findings=one.findings,
                counted=one.counted,
            )
    counts = "; ".join(
        f"{format_count(one.errors + one.findings, 'wrong result')} of {names[one.uuid]}"
        for one in done
    )
    return Outcome(text=f"acknowledged {counts}", gpus=tuple(one.uuid for one in done))


def _known(context: ApiContext) -> list[KnownGpu]:
    """List the GPUs of the daemon, and those of which it has stored verified work."""
    here = [
        KnownGpu(uuid=view.uuid, index=view.index, serial=view.serial, present=True)
        for view in context.views.gpus
    ]
    present = {gpu.uuid for gpu in here}
    return here + [
        KnownGpu(uuid=uuid, index=work.index, serial=work.serial, present=False)
        for uuid, work in context.verified.gpus.items()
        if uuid not in present
    ]
