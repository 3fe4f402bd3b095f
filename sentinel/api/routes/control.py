"""Commands to the daemon and its GPUs; each response is sent when the command took effect."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from sentinel.api import serializers
from sentinel.api.bodies import (
    AcknowledgeRequest,
    BurninRequest,
    PauseRequest,
    ProblemError,
    ResumeRequest,
    deadline_of,
)
from sentinel.api.context import ApiContext, By, ContextDep, cancel_on_disconnect, problems
from sentinel.api.snapshots import driver_released, stressors_gone
from sentinel.config.changes import check_listed
from sentinel.config.gpu_selection import KnownGpu, select_known
from sentinel.config.plan import Plan, check_workloads, parse_plan
from sentinel.config.toml_text import parse_toml
from sentinel.host.verified_store import StoredWork, unworked
from sentinel.protocol.api_types import BurninStarted, Outcome
from sentinel.protocol.codec import DecodeError, from_json
from sentinel.protocol.commands import (
    AcknowledgeResults,
    Caller,
    CancelBurnin,
    EarlierWork,
    PauseGpus,
    ResumeGpus,
    StartBurnin,
    StopDaemon,
)
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.problem import Code
from sentinel.protocol.views import ACKNOWLEDGED, BurninRunView, GpuView, KnownFaults
from sentinel.units import format_count

control = APIRouter(tags=["control"])
burnin = APIRouter(prefix="/v1/burnin", tags=["burn-in"])

_COMMAND = problems(Code.CONFLICT)
_SELECT = problems(Code.CONFLICT, Code.NO_SUCH_GPU)
_SELECT_AND_WAIT = problems(Code.CONFLICT, Code.NO_SUCH_GPU, Code.TIMEOUT)


@control.post("/v1/stop", responses=_COMMAND)
async def stop(context: ContextDep, by: By) -> Outcome:
    """Release all GPUs and end the daemon. The response is sent before that is done."""
    return await context.run_command(StopDaemon, by=by)


@control.post("/v1/restart", responses=_COMMAND)
async def restart(context: ContextDep, by: By) -> Outcome:
    """End the daemon, and start it again with its arguments and environment.

    The response is sent before that is done. Settings that clients changed and did not save end.
    """
    if context.spec.managed:
        raise ProblemError(
            Code.CONFLICT, "systemd runs this daemon: use `systemctl restart sentinel`."
        )
    return await context.run_command(StopDaemon, by=by, restart=True)


@control.post("/v1/pause", responses=_SELECT_AND_WAIT)
async def pause(
    request: Request, context: ContextDep, by: By, body: PauseRequest | None = None
) -> Outcome:
    """Release GPUs, by default all, and do not occupy them.

    The response is sent when their memory is free or, with `release`, when the driver is released.
    After a timeout, the pause remains in effect.
    """
    return await cancel_on_disconnect(request, _pause(context, by, body or PauseRequest()))


@control.post("/v1/resume", responses=_SELECT)
async def resume(context: ContextDep, by: By, body: ResumeRequest | None = None) -> Outcome:
    """End the pause of GPUs, by default of all."""
    gpus = context.views.select((body or ResumeRequest()).gpus)
    return await context.run_command(ResumeGpus, by=by, gpus=gpus)


async def _pause(context: ApiContext, by: Caller, body: PauseRequest) -> Outcome:
    # Once the pause has ended, stressors may come back.
    deadline = min(deadline_of(body.wait_s), deadline_of(body.seconds))
    gpus = context.views.select(body.gpus)
    outcome = await context.run_command(
        PauseGpus, by=by, gpus=gpus, seconds=body.seconds, release=body.release
    )
    if body.wait_s != 0:
        if body.release:  # no memory is held then
            await driver_released(context.views, deadline)
        else:
            await stressors_gone(context.views, gpus, deadline)
    return outcome


# --- wrong results ----------------------------------------------------------------------------


@control.post("/v1/acknowledge", responses=problems(Code.CONFLICT, Code.NO_SUCH_GPU))
async def acknowledge(context: ContextDep, by: By, body: AcknowledgeRequest) -> Outcome:
    """Take the wrong results of repaired GPUs as known: they no longer count as a fault.

    They stay counted, and who acknowledged them, when and why is stored with them, on disk before
    the response is sent. A later wrong result counts at once. A burn-in with the verdict FAIL is
    not acknowledged: it counts until the GPU has passed one.
    """
    known = _known(context)
    chosen = select_known(body.gpus, known)
    faulty = _faulty(context)
    done = await context.verified.acknowledge(chosen, str(by), body.reason, body.outcome, faulty)
    names = {gpu.uuid: f"GPU {gpu.uuid if gpu.index is None else gpu.index}" for gpu in known}
    if not done:
        listed = ", ".join(names[uuid] for uuid in chosen)
        text = f"No wrong results, XIDs or uncorrectable errors count against {listed}."
        raise ProblemError(Code.CONFLICT, text)
    for gpu in done:
        # It is on disk. A daemon that is ending takes no more commands, and has no more events.
        with contextlib.suppress(ProblemError):
            await context.supervisor.execute(
                AcknowledgeResults,
                by=by,
                gpu=gpu.uuid,
                reason=body.reason,
                errors=gpu.errors,
                findings=gpu.findings,
                counted=gpu.counted,
                outcome=body.outcome,
            )
    counts = "; ".join(
        f"{format_count(wrong, 'wrong result') if wrong else 'faults'} of {names[gpu.uuid]}"
        for gpu in done
        for wrong in (gpu.errors + gpu.findings,)
    )
    return Outcome(text=f"acknowledged {counts}", gpus=tuple(gpu.uuid for gpu in done))


def _faulty(context: ApiContext) -> dict[str, StoredWork]:
    """Return the GPUs whose known faults can be acknowledged, as they are stored without work."""
    found: list[GpuView | Gpu] = [
        view for view in context.views.gpus if {fault.kind for fault in view.faults} & ACKNOWLEDGED
    ]
    found += [one.gpu for one in _elsewhere(context) if one.xids]
    return {gpu.uuid: unworked(gpu) for gpu in found}


def _elsewhere(context: ApiContext) -> list[KnownFaults]:
    """List what earlier daemons knew of GPUs that this one does not have."""
    here = {view.uuid for view in context.views.gpus}
    return [one for one in context.views.host.known_faults if one.gpu.uuid not in here]


def _known(context: ApiContext) -> list[KnownGpu]:
    """List the GPUs of the daemon, and those of which it has stored verified work."""
    here = [
        KnownGpu(
            uuid=view.uuid,
            index=None if view.renumbered else view.index,
            serial=view.serial,
            pci_bus_id=view.pci_bus_id,
            present=True,
        )
        for view in context.views.gpus
    ]
    here += [
        KnownGpu(uuid=one.gpu.uuid, index=one.gpu.index, serial=one.gpu.serial, present=False)
        for one in _elsewhere(context)
    ]
    present = {gpu.uuid for gpu in here}
    return here + [
        KnownGpu(uuid=uuid, index=work.index, serial=work.serial, present=False)
        for uuid, work in context.verified.gpus.items()
        if uuid not in present
    ]


# --- the burn-in ------------------------------------------------------------------------------


@burnin.post("", status_code=201, responses=problems(Code.CONFLICT, Code.NO_SUCH_GPU))
async def start_burnin(context: ContextDep, by: By, body: BurninRequest) -> BurninStarted:
    """Take GPUs through a plan instead of their settings, which they have again afterwards.

    One burn-in runs at a time. It yields to newcomers as everything else does, and its events and
    the status have its progress. What was done is not recorded here: `sentinel burnin` does that.
    """
    if body.bound and by.pid is None:
        detail = "Only the Unix socket identifies the process that the burn-in is bound to."
        raise ProblemError(Code.INVALID, detail)
    gpus = context.views.select(body.gpus)
    done = _earlier(body.done)
    # In a thread: a large plan takes a while, and the packages may be on a slow disk.
    table, plan = await asyncio.to_thread(_parse, context, by, body.plan)
    id_ = secrets.token_hex(4)
    reply = await context.supervisor.execute(
        StartBurnin,
        by=by,
        id=id_,
        plan=table,
        gpus=gpus,
        fail_fast=body.fail_fast,
        bound=body.bound,
        done=done,
    )
    now = time.monotonic()
    run = BurninRunView(id=id_, plan=plan.name, gpus=reply.gpus, by=by, since=now)
    return BurninStarted(burnin=serializers.burnin(run))


@burnin.delete("", responses=problems(Code.NOT_FOUND))
async def cancel_burnin(
    context: ContextDep,
    by: By,
    id: str | None = None,  # noqa: A002 - the API's
    reason: Annotated[str | None, Query(max_length=200, description="Why, for the report.")] = None,
) -> Outcome:
    """End the burn-in, or only that with this id. What was done of it stays in the events."""
    return await context.run_command(CancelBurnin, by=by, id=id, reason=reason)


def _earlier(given: Mapping[str, Any]) -> dict[str, EarlierWork]:
    """Build what GPUs have done before.

    Raises:
        ProblemError: A field is missing, or of a wrong type.
    """
    try:
        return {uuid: from_json(EarlierWork, one, f"done.{uuid}") for uuid, one in given.items()}
    except DecodeError as error:
        raise ProblemError(Code.INVALID, f"{error}.") from None


def _parse(context: ApiContext, by: Caller, text: str) -> tuple[dict[str, Any], Plan]:
    """Parse a plan here, and not in the supervisor, which a large one would delay.

    Raises:
        ConfigError: It is not TOML, not a plan, or names an unknown workload.
        AccessDeniedError: The caller may not start one of its workloads.
    """
    table = parse_toml(text, "the plan")
    plan = parse_plan(table, "the plan")
    workloads = context.settings.allowed_workloads(by)
    for phase in plan.phases:
        check_listed(phase.workload, f"phase {phase.name!r}", workloads)
    check_workloads(plan, "the plan")
    return table, plan
