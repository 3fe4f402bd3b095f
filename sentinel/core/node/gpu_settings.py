"""Lay the settings of each GPU over each other. Pure.

They follow from the state: the daemon's, those for this GPU alone, those of its session, and those
of the phase of a burn-in, each over the one before.
"""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.build import lay_over
from sentinel.core.state import State


def lay_settings(state: State) -> State:
    """Derive the settings of each GPU: the lasting ones, its session's, and those of its burn-in.

    Raises:
        ConfigError: A value of a session is not allowed, or contradicts the daemon's settings.
    """
    config, run = state.config, state.burnin_run
    each = dict(config.lasting)
    for session in state.sessions.values():
        for uuid in session.gpus if session.suspended is None else ():
            own = each.get(uuid, config)
            if "workload" in session.settings:  # instead of a plan, which names its own workloads
                own = replace(own, plan=None)
            each[uuid] = lay_over(own, session.given(uuid))
    for uuid in run.gpus if run is not None else ():
        if run is not None and uuid not in run.done:
            # At full speed: what slows a stressor down would be judged as a slow GPU.
            own = replace(each.get(uuid, config), util=None, power=None, duty=None)
            each[uuid] = replace(own, plan=run.plan, repeat=False, fail_fast=run.fail_fast)
    for uuid, gpu_state in state.gpu_states.items():
        own = each.get(uuid, config)
        workload = gpu_state.progress.workload(own.plan) or own.workload
        if own.workload != workload:
            each[uuid] = replace(own, workload=workload)
    each = {uuid: replace(own, each={}, lasting={}) for uuid, own in each.items()}
    return state.with_config(replace(config, each=each))


def chooser_of_workload(state: State, uuid: str) -> str | None:
    """Name the phase or the session that chose the workload of a GPU; None if a setting did."""
    plan = state.config.of(uuid).plan
    if plan is not None:
        return f"phase {state.gpu_states[uuid].progress.phase_of(plan).name} of plan {plan.name}"
    for session in state.sessions.values():
        if uuid in session.gpus and session.suspended is None and "workload" in session.settings:
            return f"session {session.name}"
    return None
