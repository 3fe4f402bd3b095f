"""Lay the settings of a burn-in over those of a GPU. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.burnin.progress import BurninRun
from sentinel.core.state import State


def run_of(state: State, uuid: str) -> BurninRun | None:
    """Return the burn-in of a client that a GPU has still work to do for, or None."""
    run = state.burnin_run
    return None if run is None or uuid not in run.view.gpus or uuid in run.done else run


def is_repeated(state: State, uuid: str) -> bool:
    """Check whether a GPU begins its plan again: the daemon's own, and not that of a client."""
    return state.orders.repeat and run_of(state, uuid) is None


def with_burnin(state: State, uuid: str, own: Config) -> Config:
    """Return the settings of a GPU with those of its burn-in and of its phase."""
    run = run_of(state, uuid)
    if run is not None:
        # At full speed: what slows a stressor down would be judged as a slow GPU.
        own = replace(own, util=None, power=None, duty=None, plan=run.plan)
    workload = state.gpu_states[uuid].progress.workload(own.plan) or own.workload
    return own if workload == own.workload else replace(own, workload=workload)


def with_own_workload(own: Config) -> Config:
    """Return the settings of a GPU without a plan, which names workloads of its own."""
    return replace(own, plan=None)


def chooser_of_workload(state: State, uuid: str) -> str | None:
    """Name the phase that chose the workload of a GPU; None if another setting did."""
    plan = state.config.of(uuid).plan
    if plan is None:
        return None
    return f"phase {state.gpu_states[uuid].progress.phase_of(plan).name} of plan {plan.name}"
