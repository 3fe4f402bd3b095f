"""The burn-in of the daemon: start and cancel it; the status has its progress."""

from __future__ import annotations

import secrets
import time
import tomllib
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter

from sentinel.api.bodies import BurninRequest, ProblemError
from sentinel.api.routes.dependencies import By, ContextDep, problems
from sentinel.api.serializers import burnin
from sentinel.config.plan import Plan, parse_plan
from sentinel.config.specs import check_workload
from sentinel.errors import ConfigError
from sentinel.protocol.api_types import BurninStarted, Outcome
from sentinel.protocol.codec import DecodeError, from_json
from sentinel.protocol.commands import CancelBurnin, EarlierWork, Level, StartBurnin
from sentinel.protocol.problem import Code
from sentinel.protocol.views import BurninRunView

router = APIRouter(prefix="/v1/burnin", tags=["burn-in"])


@router.post("", status_code=201, responses=problems(Code.INVALID, Code.CONFLICT, Code.NO_SUCH_GPU))
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
    table, plan = _parse(body.plan)
    for phase in plan.phases:
        if by.level < Level.OWN:
            context.check_workload(phase.workload, f"phase {phase.name!r}")
        try:
            check_workload(phase.workload)
        except ConfigError as error:
            raise ConfigError(f"phase {phase.name!r}: {error.what}", error.remedy) from error
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
    return BurninStarted(burnin=burnin(run, now))


@router.delete("", responses=problems(Code.NOT_FOUND))
async def cancel_burnin(context: ContextDep, by: By) -> Outcome:
    """End the burn-in. What was done of it stays in the events."""
    reply = await context.supervisor.execute(CancelBurnin, by=by)
    return Outcome(text=reply.text, gpus=reply.gpus)


def _earlier(given: Mapping[str, Any]) -> dict[str, EarlierWork]:
    """Build what GPUs have done before.

    Raises:
        ProblemError: A field is missing, or of a wrong type.
    """
    try:
        return {uuid: from_json(EarlierWork, one, f"done.{uuid}") for uuid, one in given.items()}
    except DecodeError as error:
        raise ProblemError(Code.INVALID, f"{error}.") from None


def _parse(text: str) -> tuple[dict[str, Any], Plan]:
    """Parse a plan here, and not in the supervisor, which a large one would delay.

    Raises:
        ConfigError: The plan is invalid.
        ProblemError: It is no TOML.
    """
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ProblemError(Code.INVALID, f"The plan is no TOML: {error}.") from None
    plan = parse_plan(table, "the plan")
    return table, plan
