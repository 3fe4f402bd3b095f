"""Start and cancel the burn-in of a daemon. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sentinel.config.plan import Plan, parse_plan
from sentinel.core.burnin import phases
from sentinel.core.burnin.progress import Burnin, BurninRun
from sentinel.core.gpu_state import GpuState
from sentinel.core.lifecycle import reset_failures
from sentinel.core.node.command_result import (
    Accepted,
    RefusedError,
    caller_fields,
    check_gpus,
    check_owner,
    names_of,
)
from sentinel.core.node.gpu_settings import lay_settings
from sentinel.core.observation import Observation
from sentinel.core.state import State
from sentinel.core.step import Event, Step, gpu_fields
from sentinel.protocol.commands import CancelBurnin, EarlierWork, PhaseWork, Refusal, StartBurnin
from sentinel.protocol.views import BurninRunView

#: The numbers of what a GPU has done, and the largest: the fastest GPU needs decades for it.
_COUNTS = (
    *("seconds", "uncounted", "stretch", "longest", "iterations", "flops", "bytes"),
    *("checks", "errors", "patterns", "interruptions"),
)
_MAX_COUNT = 1e24


def start(state: State, command: StartBurnin, seen: Observation) -> Accepted:
    """Apply a command that starts a burn-in."""
    now = seen.now
    check_gpus(state, command.gpus)
    _check_possible(state)
    plan = parse_plan(command.plan, "the plan")
    gpus = command.gpus or tuple(state.gpu_states)
    unusable = _why_not_done(command.done, gpus, plan)
    if unusable is not None:
        raise RefusedError(Refusal.INVALID, unusable)
    view = BurninRunView(
        id=command.id,
        plan=plan.name,
        gpus=gpus,
        by=command.by,
        since=now,
        bound=command.bound,
    )
    fields = {
        "id": view.id,
        "plan": plan.name,
        "gpus": gpu_fields(state.gpu_states[uuid].gpu for uuid in gpus),
        "by": caller_fields(command.by),
    }
    event = Event(name="burnin.run_started", at=now, fields=fields)
    text = f"started the plan {plan.name} on {names_of(state, gpus)}"
    counted_from = now if state.orders.burnin_only else state.counted_from
    state = replace(state, burnin_run=BurninRun(view=view, plan=plan), counted_from=counted_from)
    state = state.change_gpus(lambda gpu_state: _begun(gpu_state, plan, command), gpus)
    return Accepted(Step(lay_settings(state), events=(event,)), text, gpus)


def cancel(state: State, command: CancelBurnin, seen: Observation) -> Accepted:
    """Apply a command that ends the burn-in."""
    run = state.burnin_run
    if run is None:
        raise RefusedError(Refusal.NOT_FOUND, "no burn-in runs")
    if command.id not in {None, run.view.id}:
        raise RefusedError(Refusal.NOT_FOUND, f"burn-in {command.id} has ended; {run.view.id} runs")
    check_owner(command.by, run.view.by, "the burn-in")
    left = [uuid for uuid in run.view.gpus if uuid not in run.done]
    reason = command.reason or f"cancelled by {command.by}"
    step = phases.end_plans(state, seen, reason, left)
    text = f"ends the burn-in {run.plan.name}"
    return Accepted(step, text, run.view.gpus)


def _begun(gpu_state: GpuState, plan: Plan, command: StartBurnin) -> GpuState:
    """Begin the plan on a GPU, or go on with it; what its former workload has done is no part."""
    burnin = Burnin(fail_fast=command.fail_fast, findings_before=gpu_state.findings.total)
    earlier = command.done.get(gpu_state.gpu.uuid)
    if earlier is not None:
        work = replace(earlier.work, stretch=0.0)
        # What was done of the phases that are over is in the record of the run, and not here.
        over = (PhaseWork(),) * earlier.phase
        works = (*over, work)[: len(plan.phases)]
        burnin = replace(burnin, phase=earlier.phase, work=works)
    return replace(reset_failures(gpu_state), burnin=burnin)


def _why_not_done(done: Mapping[str, EarlierWork], gpus: Sequence[str], plan: Plan) -> str | None:
    """Explain why earlier work cannot be gone on with, or return None."""
    phases = len(plan.phases)
    for uuid, earlier in done.items():
        if uuid not in gpus:
            return f"earlier work of {uuid}, which is not selected"
        if not 0 <= earlier.phase <= phases:
            return f"earlier work up to phase {earlier.phase}; {plan.name} has {phases}"
        why = _why_impossible(earlier.work)
        if why is not None:
            return f"earlier work of {uuid}: {why}"
    return None


def _why_impossible(work: PhaseWork) -> str | None:
    """Explain why a GPU cannot have done this, or return None.

    What a client sends is counted with what GPUs do: a sum must stay a finite number, and a number
    of patterns must have patterns.
    """
    counts = {
        **{name: getattr(work, name) for name in _COUNTS},
        **{f"covered.{pattern}": times for pattern, times in work.covered.items()},
    }
    for name, count in counts.items():
        if not 0 <= count <= _MAX_COUNT:
            return f"{name} is not between 0 and {_MAX_COUNT:g}"
    for name in ("share", "retained"):
        share = getattr(work, name)
        if share is not None and not 0.0 <= share <= 1.0:
            return f"{name} is not between 0 and 1"
    return None


def _check_possible(state: State) -> None:
    """Refuse a burn-in that could not run now."""
    text = None
    if state.burnin_run is not None:
        text = f"the burn-in {state.burnin_run.plan.name} runs: wait for its end, or cancel it"
        text += " (sentinel burnin attach, sentinel burnin cancel)"
    elif state.config.dry_run:
        text = "this sentinel only watches (--monitor) and occupies nothing"
    if text is not None:
        raise RefusedError(Refusal.CONFLICT, text)
