"""Explain by which rule each GPU is occupied or not, and when that may change. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.gpu.verdict import Verdict, by_stressor
from sentinel.core.node import limits
from sentinel.core.observation import Observation
from sentinel.core.state import State
from sentinel.core.stressor_state import Running, Starting


def explanations(state: State, seen: Observation) -> dict[str, Verdict]:
    """Return for each GPU the rule by which it is occupied or not.

    These are the verdicts about a start, and for a GPU with a stressor what that does. The rules
    and their times are in :mod:`sentinel.protocol.rules`.
    """
    found = {
        uuid: _explain(state, uuid, verdict)
        for uuid, verdict in limits.verdicts(state, seen).items()
    }
    # The time of a rule that is over although it still decides is not known any more.
    return {
        uuid: one if one.until is None or one.until > seen.now else replace(one, until=None)
        for uuid, one in found.items()
    }


def _explain(state: State, uuid: str, verdict: Verdict) -> Verdict:
    """Return what a stressor does that has not been stopped, or why there is none."""
    stressor = state.gpu_states[uuid].stressor
    if isinstance(stressor, Starting | Running):
        return by_stressor(stressor) or verdict
    if state.shutdown is not None:
        return limits.ending(state.shutdown)
    if not verdict.allowed:
        return verdict
    next_ = (
        "--dry-run starts no stressor" if state.config.dry_run else "its stressor is started next"
    )
    return replace(verdict, reason=f"{verdict.reason}; {next_}")
