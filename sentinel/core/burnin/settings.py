"""Lay the settings of a burn-in over those of a GPU. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core.state import State


def with_phase(state: State, uuid: str, own: Config) -> Config:
    """Return the settings of a GPU with those of its burn-in and of its phase."""
    run = state.burnin_run
    if run is not None and run.covers(uuid):
        # At full speed: what slows a stressor down would be judged as a slow GPU.
        own = replace(own, util=None, power=None, duty=None)
        own = replace(own, plan=run.plan, repeat=False, fail_fast=run.fail_fast)
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
