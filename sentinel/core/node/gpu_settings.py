"""Lay the settings of each GPU over each other. Pure.

They follow from the state: the daemon's, those for this GPU alone, those of its session, and those
of the phase of a burn-in, each over the one before.
"""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.build import lay_over
from sentinel.core.burnin import settings as burnin
from sentinel.core.state import State


def lay_settings(state: State) -> State:
    """Derive the settings of each GPU: the lasting ones, its session's, and those of its burn-in.

    Raises:
        ConfigError: A value of a session is not allowed, or contradicts the daemon's settings.
    """
    config = state.config
    each = dict(config.lasting)
    for session in state.sessions.values():
        for uuid in session.gpus if session.suspended is None else ():
            own = each.get(uuid, config)
            if "workload" in session.settings:  # instead of a plan, which names its own workloads
                own = burnin.with_own_workload(own)
            each[uuid] = lay_over(own, session.given(uuid))
    for uuid in state.gpu_states:
        own = each.get(uuid, config)
        with_burnin = burnin.with_burnin(state, uuid, own)
        if with_burnin is not own:
            each[uuid] = with_burnin
    each = {uuid: replace(own, each={}, lasting={}) for uuid, own in each.items()}
    return state.with_config(replace(config, each=each))


def chooser_of_workload(state: State, uuid: str) -> str | None:
    """Name the phase or the session that chose the workload of a GPU; None if a setting did."""
    if (chooser := burnin.chooser_of_workload(state, uuid)) is not None:
        return chooser
    for session in state.sessions.values():
        if uuid in session.gpus and session.suspended is None and "workload" in session.settings:
            return f"session {session.name}"
    return None
