"""What other rules of the core ask about burn-ins, and what they apply. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from sentinel.config.model import Config
from sentinel.config.plan import Plan
from sentinel.core.burnin import commands, groups, phases, progress, settings
from sentinel.core.burnin.progress import Burnin, Group
from sentinel.core.gpu_state import GpuState
from sentinel.core.node.command_result import Accepted
from sentinel.core.observation import Observation
from sentinel.core.ruling import Ruling
from sentinel.core.state import State
from sentinel.core.step import Event, Step, gpu_event, sensor_fields
from sentinel.protocol.commands import COUNTS, CancelBurnin, Command, StartBurnin
from sentinel.protocol.stressor import StressorGroup
from sentinel.protocol.views import BurninFields, BurninRunView

#: What applies each command.
APPLY: Final[Mapping[type[Command], Callable[[State, Any, Observation], Accepted]]] = {
    StartBurnin: commands.start,
    CancelBurnin: commands.cancel,
}

#: Why settings cannot be changed during a burn-in.
_LOCKED = "a burn-in runs with the present settings: cancel it first (sentinel burnin cancel)"

#: What an event reports of a GPU's progress.
_PROGRESS = (
    *("phase", "number", "phases", "done_s", "quota_s", "passes", "quota_passes", "left_s"),
    *("checks", "errors", "waiting"),
)


# --- rules of a tick -------------------------------------------------------------------------


def advance(state: State, seen: Observation) -> Step[State]:
    """Count the work of this tick, and report what its stressors have measured."""
    return phases.advance(state, seen).then(phases.report_measurements, seen)


def end_if_over(state: State, seen: Observation) -> Step[State]:
    """End what a shutdown cuts short, and a burn-in that is done."""
    return phases.cut_short(state, seen).then(phases.end_if_done, seen)


def wait_together(state: State) -> bool:
    """Check whether a GPU waits to begin its phase together with others."""
    return phases.is_planned(state) and any(
        groups.why_waiting(gpu_state, state.config.of(uuid)) is not None
        for uuid, gpu_state in state.gpu_states.items()
    )


def form_groups(state: State, now: float, rulings: Mapping[str, Ruling]) -> Step[State]:
    """Form the groups of the GPUs that wait for each other, of those that could start now."""
    ready = [uuid for uuid, ruling in rulings.items() if ruling.rule == "burnin.together"]
    return groups.form(state, now, ready)


# --- rules of one GPU ------------------------------------------------------------------------


def comes_after(state: State, gpu_state: GpuState) -> Ruling | None:
    """Leave a place under ``limits.gpus`` to each GPU whose burn-in is not done."""
    current, most = state.burnin_run, state.config.max_gpus
    if current is None or most is None or settings.run_of(state, gpu_state.gpu.uuid) is not None:
        return None
    first = set(current.view.gpus) - set(current.done)
    others = [gpu for uuid, gpu in state.gpu_states.items() if uuid not in first]
    held = sorted((gpu for gpu in others if gpu.is_held), key=lambda gpu: gpu.launch.at)
    if gpu_state not in held:
        held.append(gpu_state)
    if gpu_state in held[: max(0, most - len(first))]:
        return None
    return Ruling("limits.gpus", "the GPUs of the burn-in come first (limits.gpus)")


def finished(state: State, gpu_state: GpuState) -> Ruling | None:
    """Keep a GPU free that has done its plan."""
    own, done = state.config.of(gpu_state.gpu.uuid), gpu_state.progress
    if own.plan is None:
        return (
            Ruling("burnin", "no burn-in has begun, or it is done")
            if state.orders.burnin_only
            else None
        )
    if not done.finished(own.plan):
        return None
    return Ruling("burnin", done.ended or f"it has done all phases of {own.plan.name}")


def waits_for_group(state: State, gpu_state: GpuState) -> Ruling | None:
    """Wait for the GPUs that do the phase together."""
    why = groups.why_waiting(gpu_state, state.config.of(gpu_state.gpu.uuid))
    return None if why is None else Ruling("burnin.together", why)


# --- the stressor of a GPU -------------------------------------------------------------------


def group_of(gpu_state: GpuState) -> Group | None:
    """Return the group that the stressor of a GPU works in, or None."""
    return gpu_state.progress.group


def rank_of(gpu_state: GpuState) -> StressorGroup | None:
    """Return the place of a GPU's stressor in its group, or None."""
    group = gpu_state.progress.group
    if group is None:
        return None
    rank = group.members.index(gpu_state.gpu.uuid)
    return StressorGroup(number=group.number, rank=rank, gpus=group.indices)


def why_restarted(own: Config) -> str:
    """Explain why a stressor is started again with other settings."""
    return "its settings have changed" if own.plan is None else "its next phase is due"


# --- the daemon ------------------------------------------------------------------------------


def is_planned(state: State) -> bool:
    """Check whether a GPU may have a plan."""
    return phases.is_planned(state)


def is_idle(state: State) -> bool:
    """Check whether a daemon for burn-ins alone does none."""
    return state.orders.burnin_only and state.burnin_run is None


def why_locked(state: State) -> str | None:
    """Explain why settings cannot be changed now, or return None."""
    return None if state.burnin_run is None else _LOCKED


def kept(new: Config, before: Config) -> Config:
    """Return new settings with the plan of a daemon, which is none of them."""
    return replace(new, plan=before.plan)


# --- what is shown ---------------------------------------------------------------------------


def progress_events(
    state: State, seen: Observation, rulings: Mapping[str, Ruling]
) -> Iterator[Event]:
    """Report how far each GPU is, unless it is done."""
    for uuid, gpu_state in state.gpu_states.items():
        plan = state.config.of(uuid).plan
        if plan is None or gpu_state.burnin is None or gpu_state.burnin.finished(plan):
            continue
        why_free = rulings[uuid].reason
        view = _view_of(state, gpu_state, plan, why_free, seen.now)
        fields = {name: getattr(view, name) for name in _PROGRESS}
        fields["findings"] = gpu_state.findings.total - gpu_state.burnin.findings_before
        sensors = sensor_fields(seen.readings.get(uuid))
        yield gpu_event("burnin.progress", gpu_state, seen.now, **fields, **sensors)


def run_view(state: State) -> BurninRunView | None:
    """Build the view of the burn-in that a client has asked for; None without one."""
    return None if state.burnin_run is None else state.burnin_run.view


def gpu_view(state: State, gpu_state: GpuState, why_free: str, now: float) -> BurninFields | None:
    """Build the view of a GPU's plan; it is kept until the plans of all GPUs are over."""
    uuid, current = gpu_state.gpu.uuid, state.burnin_run
    plan = state.config.of(uuid).plan
    if current is not None and uuid in current.view.gpus:
        plan, done = current.plan, current.done.get(uuid)
        gpu_state = gpu_state if done is None else replace(gpu_state, burnin=done)
    return None if plan is None else _view_of(state, gpu_state, plan, why_free, now)


def _view_of(
    state: State, gpu_state: GpuState, plan: Plan, why_free: str, now: float
) -> BurninFields:
    """Build the view of a GPU's progress through a plan.

    Args:
        state: The state.
        gpu_state: The GPU, as it is to be shown.
        plan: Its plan.
        why_free: The reason why it has no stressor, if it has none.
        now: The time.
    """
    uuid = gpu_state.gpu.uuid
    until = phases.cools_until(gpu_state, state.config.of(uuid))
    if until is not None and not settings.is_repeated(state, uuid):
        left = math.ceil(max(0.0, until - now) / 60)
        why_free += f"; given up unless it cools within {left} min"
    burnin = gpu_state.progress
    number = min(burnin.phase, len(plan.phases) - 1)
    phase, work = plan.phases[number], burnin.current
    return BurninFields(
        plan=plan.name,
        over=burnin.finished(plan),
        ended=burnin.ended,
        **phases.phase_fields(plan, number),
        done_s=work.stretch if phase.in_one_stretch else work.seconds,
        quota_s=phase.seconds,
        passes=work.passes(),
        quota_passes=phase.passes,
        left_s=progress.seconds_left(burnin, plan),
        waiting=_why_waiting(gpu_state, burnin, plan, why_free),
        seconds=sum(work.seconds + work.uncounted for work in burnin.work),
        **{name: sum(getattr(work, name) for work in burnin.work) for name in COUNTS},
    )


def _why_waiting(gpu_state: GpuState, burnin: Burnin, plan: Plan, why_free: str) -> str | None:
    """Explain why nothing counts at the moment, or return None."""
    if burnin.finished(plan):
        return None
    if not gpu_state.is_live:
        if burnin.waiting_since is not None:
            return "waiting for the other GPUs"
        return why_free
    return "warming up" if plan.phases[burnin.phase].steady and not burnin.warm else None
