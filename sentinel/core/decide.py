"""Decide one tick: what follows from the state and the observation. Pure.

A tick has two parts. ``react`` takes every GPU from its reading to its next step; the supervisor
sends the resulting kills at once. ``conclude`` decides everything else. ``decide`` is both: a bug
report is two values to paste into a test.
"""

from __future__ import annotations

from dataclasses import replace

from sentinel.config.model import Config
from sentinel.core import child_facts, faults, health, lifecycle, newcomer, pace_controller
from sentinel.core.burnin import interface as burnin
from sentinel.core.gpu_state import GpuState
from sentinel.core.gpu_step import step_gpu
from sentinel.core.node import (
    commands,
    daemon,
    grants,
    probe_supervision,
    serving_processes,
    sessions,
    starts,
    status,
)
from sentinel.core.observation import Identity, Observation
from sentinel.core.state import Probe, Process, Rule, State, each_gpu, on_each_gpu
from sentinel.core.step import Event, Kill, Step, chain, rank
from sentinel.protocol.gpu import Gpu

#: A supervisor that did not run for so long has stalled, in seconds: leases may have run out.
STALL_S = 1.0
#: The consequences of a stall may appear for so long after it, in seconds.
STALL_ECHO_S = 10.0

#: The rules of the second part, in their order.
_RULES: tuple[Rule, ...] = (
    # What clients, operators and the clock want.
    sessions.expire,
    commands.apply,
    burnin.advance,
    commands.expire_pauses,
    grants.expire,
    daemon.follow,
    burnin.end_if_over,
    on_each_gpu(child_facts.report_xids, lifecycle.report_slow_start),
    # The serving processes, and what clients have.
    serving_processes.step_api,
    grants.serve,
    on_each_gpu(newcomer.limit_memory),
    probe_supervision.step,
    serving_processes.step_spare_probe,
    # The stressors: their paces, their ends, and at most one start.
    on_each_gpu(faults.update, health.assess, pace_controller.step),
    daemon.stop_all,
    daemon.give_up,
    starts.release,
    starts.form_groups,
    starts.start_one,
    serving_processes.step_standby,
    # What is reported, and what the probe is to read.
    status.explain,
    status.log_checks,
    status.report,
    probe_supervision.watch_gpus,
    daemon.finish,
)


def first_state(
    gpus: tuple[Gpu, ...],
    now: float,
    config: Config,
    probe: Probe | None = None,
    hidden: str | None = None,
    *,
    with_api: bool = False,
) -> State:
    """Return the state before the first tick, in which every GPU is unknown.

    Args:
        gpus: The GPUs to occupy.
        now: The time.
        config: The configuration.
        probe: The probe that found the GPUs, if it goes on; otherwise one is due.
        hidden: Why foreign processes may be missing from the lists here, or None.
        with_api: Whether an API process is wanted.
    """
    return State(
        config=config,
        gpu_states={
            gpu.uuid: GpuState(gpu=gpu, identity=Identity(hidden=hidden), changed=now)
            for gpu in gpus
        },
        started=now,
        counted_from=now,
        probe=probe or Probe(due=now, reason="not started yet"),
        next_status=now + config.status_every,
        api=Process(due=now) if with_api else None,
    )


def decide(state: State, seen: Observation) -> Step[State]:
    """Decide a whole tick."""
    return conclude(state, react(state, seen), seen)


# --- the first part: one step of every GPU ---------------------------------------------------


def react(state: State, seen: Observation) -> Step[State]:
    """Take every GPU from its reading to its next step."""
    return _note_stall(state, seen).then(_step_gpus, seen)


def kills(step: Step[State]) -> tuple[Kill, ...]:
    """Return the kills of a step, to send before anything else."""
    return tuple(action for action in step.actions if isinstance(action, Kill))


def _note_stall(state: State, seen: Observation) -> Step[State]:
    """Report that the supervisor did not run for a while."""
    if seen.stalled <= STALL_S:
        return Step(state)
    event = Event(name="sentinel.stalled", at=seen.now, fields={"s": seen.stalled})
    return Step(replace(state, stalled_at=seen.now), events=(event,))


def _step_gpus(state: State, seen: Observation) -> Step[State]:
    """Apply what happened on every GPU, and take at most one step."""
    stalled = state.stalled_at is not None and seen.now - state.stalled_at < STALL_ECHO_S

    def step(gpu_state: GpuState, seen: Observation, config: Config) -> Step[GpuState]:
        unusable = state.why_unusable(gpu_state.gpu.uuid, seen.now)
        return step_gpu(gpu_state, seen, config, unusable, stalled=stalled)

    return each_gpu(replace(state, unjudged=False) if state.unjudged else state, seen, step)


# --- the second part: everything else --------------------------------------------------------


def conclude(before: State, reaction: Step[State], seen: Observation) -> Step[State]:
    """Decide the rest of a tick.

    Args:
        before: The state before the reaction.
        reaction: The first part of this tick.
        seen: The observation of this tick.

    Returns:
        The result of the whole tick: kills first, and at most one Start, last.
    """
    step = chain(reaction, _RULES, seen)
    state = _with_changes(before, step.state, seen.now)
    return step._replace(state=state, actions=tuple(sorted(step.actions, key=rank)))


def _with_changes(before: State, state: State, now: float) -> State:
    """Stamp the GPUs whose occupancy or stressor has changed its state."""

    def kinds(gpu_state: GpuState) -> tuple[type, type]:
        return type(gpu_state.occupancy), type(gpu_state.stressor)

    gpu_states = {
        uuid: gpu_state
        if kinds(gpu_state) == kinds(before.gpu_states[uuid])
        else replace(gpu_state, changed=now)
        for uuid, gpu_state in state.gpu_states.items()
    }
    return state.with_gpu_states(gpu_states)
