"""Decide one tick: what follows from the state, the observation and the configuration. Pure.

A tick has two parts. ``react`` takes every GPU from its reading to its next step; the supervisor
sends the resulting kills at once. ``conclude`` decides everything else. ``decide`` is both: a bug
report is two values to paste into a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from sentinel.config.model import Config
from sentinel.core.actions import Action, Event, Kill, LimitMemory, rank
from sentinel.core.events import gpu_event
from sentinel.core.gpu import health, leaks, lifecycle, pace_controller, slow_start, xids
from sentinel.core.gpu.newcomer import memory_limit
from sentinel.core.gpu.occupancy import stale_after
from sentinel.core.gpu.step import reattribute, step_gpu
from sentinel.core.gpu.teardown import Step
from sentinel.core.gpu_state import GpuState, Unknown
from sentinel.core.identity import Identity
from sentinel.core.node import (
    api_supervision,
    burnin,
    burnin_commands,
    commands,
    limits,
    probe_supervision,
    reservations,
    shutdown,
    spare_processes,
    starts,
    status_events,
    watch_list,
)
from sentinel.core.node.node_step import NodeStep
from sentinel.core.observation import Observation
from sentinel.core.state import ProbeDown, ProbeState, State
from sentinel.core.stressor_state import Running, StopCause
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.stressor import MemoryLimit

#: A supervisor that did not run for so long has stalled, in seconds: leases may have run out.
STALL_S = 1.0
#: The consequences of a stall may appear for so long after it, in seconds.
STALL_ECHO_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Reaction:
    """The result of the first part of a tick: one step of every GPU."""

    state: State
    actions: tuple[Action, ...]
    events: tuple[Event, ...]

    @property
    def kills(self) -> tuple[Kill, ...]:
        """The kills among the actions, to send before anything else."""
        return tuple(action for action in self.actions if isinstance(action, Kill))


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The result of a tick."""

    state: State
    #: The configuration from now on.
    config: Config
    #: Kills first, and at most one Start, last. Includes those of the reaction.
    actions: tuple[Action, ...]
    events: tuple[Event, ...]
    #: When the next tick is due at the latest.
    wake_at: float


def first_state(
    gpus: tuple[Gpu, ...],
    now: float,
    config: Config,
    probe: ProbeState | None = None,
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
        gpu_states={
            gpu.uuid: GpuState(gpu=gpu, identity=Identity(hidden=hidden), changed=now)
            for gpu in gpus
        },
        started=now,
        counted_from=now,
        probe=probe or ProbeDown(generation=1, until=now, reason="not started yet"),
        next_status=now + config.status_every,
        api=api_supervision.first(now) if with_api else None,
    )


def decide(state: State, seen: Observation, config: Config) -> Decision:
    """Decide a whole tick."""
    return conclude(state, react(state, seen, config), seen, config)


# --- the first part: one step of every GPU ---------------------------------------------------


def react(state: State, seen: Observation, config: Config) -> Reaction:
    """Take every GPU from its reading to its next step."""
    events: list[Event] = []
    if seen.stalled > STALL_S:
        state = replace(state, stalled_at=seen.now)
        events.append(Event(name="sentinel.stalled", at=seen.now, fields={"s": seen.stalled}))
    stalled = state.stalled_at is not None and seen.now - state.stalled_at < STALL_ECHO_S
    actions: list[Action] = []
    gpu_states: dict[str, GpuState] = {}
    for uuid, gpu_state in state.gpu_states.items():
        unusable = _why_unusable(state, uuid, seen.now)
        step = step_gpu(gpu_state, seen, config.of(uuid), unusable, stalled=stalled)
        gpu_states[uuid] = step.gpu_state
        actions += step.actions
        events += step.events
    state = state.with_gpu_states(gpu_states)
    return Reaction(state=state, actions=tuple(actions), events=tuple(events))


def _why_unusable(state: State, uuid: str, now: float) -> str | None:
    """Explain why the readings of a GPU must not be used, or return None."""
    if state.released is not None and isinstance(state.probe, ProbeDown):
        return "the driver is released (pause --release)"
    suspect = state.suspects.get(uuid)
    if suspect is None or now >= suspect.until:
        return None
    what = "crashed" if suspect.crashed else "hung"
    return f"the driver {what} in {suspect.call}; left out for a while"


# --- the second part: everything else --------------------------------------------------------


def conclude(before: State, reaction: Reaction, seen: Observation, config: Config) -> Decision:
    """Decide the rest of a tick: commands, processes, paces, releases and one start.

    Args:
        before: The state before the reaction.
        reaction: The first part of this tick.
        seen: The observation of this tick.
        config: The configuration before this tick.
    """
    batch = commands.apply_commands(reaction.state, seen, config)
    planned = burnin.advance(batch.state, seen, batch.config)
    state, expired = commands.expire(planned.state, seen.now)
    if batch.stop is not None:
        seen = replace(seen, stop=seen.stop or batch.stop)
    state, stopping = shutdown.begin(state, seen, planned.config)
    last = burnin.cut_short(state, seen.now, planned.config)
    settled = burnin_commands.settle(last.state, seen.now, planned.config)
    judged_by, state, config = config, settled.state, settled.config
    actions = [*reaction.actions, *batch.actions]
    events = [*reaction.events, *batch.events, *planned.events, *expired, *stopping]
    events += burnin_commands.measured_events(planned.state, seen)
    events += [*last.events, *settled.events]
    # After new settings, the next tick decides the occupancy before anything is started.
    start = starts.start_one if config is judged_by else _start_nothing
    for part in (
        _report_xids,
        _report_slow_starts,
        _step_api,
        reservations.serve,
        partial(_reattribute, reaction.state),
        _limit_memory,
        probe_supervision.step,
        spare_processes.step_spare_probe,
        _step_paces,
        _stop_all,
        shutdown.give_up,
        _release,
        starts.form_groups,
        start,
        spare_processes.step_standby,
        status_events.explain,
        status_events.log_checks,
        status_events.report,
    ):
        step = part(state, seen, config)
        state = step.state
        actions += step.actions
        events += step.events
    regranted = _regranted(reaction.state, state)
    outdated = config is not judged_by or state.suspects != before.suspects or bool(regranted)
    state = _with_changes(before, state, seen.now)
    if (finished := shutdown.is_over(state, seen.now)) != state.finished:
        state = replace(state, finished=finished)
    return Decision(
        state=state,
        config=config,
        actions=tuple(sorted(actions, key=rank)),
        events=tuple(events),
        wake_at=seen.now if outdated else _wake_at(state, seen, config),
    )


def _regranted(before: State, state: State) -> list[str]:
    """List the GPUs whose allocations have changed."""
    return [
        uuid
        for uuid, gpu_state in state.gpu_states.items()
        if gpu_state.allocations != before.gpu_states[uuid].allocations
    ]


def _reattribute(before: State, state: State, seen: Observation, config: Config) -> NodeStep:
    """Attribute the processes of GPUs with changed allocations again, before a start and a view."""
    regranted = _regranted(before, state)

    def step(gpu_state: GpuState) -> Step:
        uuid = gpu_state.gpu.uuid
        if uuid not in regranted:
            return Step(gpu_state=gpu_state)
        unusable = _why_unusable(state, uuid, seen.now)
        return reattribute(gpu_state, seen, config.of(uuid), unusable)

    return _step_each(state, step)


def _limit_memory(state: State, _: Observation, config: Config) -> NodeStep:
    """Tell each stressor how much memory may be used; before the reply to an allocation."""
    actions: list[Action] = []
    gpu_states = dict(state.gpu_states)
    for uuid, gpu_state in state.gpu_states.items():
        running = gpu_state.stressor
        if not isinstance(running, Running):
            continue
        used, at_once = memory_limit(gpu_state), config.of(uuid).yield_how == "kill"
        if (used, at_once) == (running.memory_limit.used, running.memory_limit.at_once):
            continue
        limit = MemoryLimit(used=used, at_once=at_once)
        actions.append(LimitMemory(uuid=uuid, generation=gpu_state.generation, limit=limit))
        gpu_states[uuid] = replace(gpu_state, stressor=replace(running, memory_limit=limit))
    return NodeStep(state=state.with_gpu_states(gpu_states), actions=tuple(actions))


def _start_nothing(state: State, _: Observation, __: Config) -> NodeStep:
    return NodeStep(state=state)


def _step_api(state: State, seen: Observation, _: Config) -> NodeStep:
    """Start, watch or replace the API process."""
    return api_supervision.step(state, seen)


def _report_xids(state: State, seen: Observation, _: Config) -> NodeStep:
    """Report the XIDs of every GPU."""
    return _step_each(state, lambda gpu_state: xids.fold(gpu_state, seen))


def _report_slow_starts(state: State, seen: Observation, config: Config) -> NodeStep:
    """Report every stressor that takes long to become ready."""
    return _step_each(state, lambda one: slow_start.step(one, seen.now, config.of(one.gpu.uuid)))


def _step_paces(state: State, seen: Observation, config: Config) -> NodeStep:
    """Update the health and the pace of every GPU."""

    def step(gpu_state: GpuState) -> Step:
        uuid = gpu_state.gpu.uuid
        reading, own = seen.readings.get(uuid), config.of(uuid)
        gpu_state, events = health.assess(gpu_state, reading, seen.now, own)
        paced = pace_controller.step(gpu_state, reading, seen.now, own)
        return replace(paced, events=(*events, *paced.events)) if events else paced

    return _step_each(state, step)


def _stop_all(state: State, seen: Observation, _: Config) -> NodeStep:
    """Stop every stressor during a shutdown."""
    if state.shutdown is None:
        return NodeStep(state=state)
    kill_at = state.shutdown.kill_at
    return _step_each(state, lambda one: lifecycle.shut_down(one, seen.now, kill_at))


def _release(state: State, seen: Observation, config: Config) -> NodeStep:
    """Stop the stressors that a command or a rule over all GPUs releases."""
    if state.shutdown is not None:
        return NodeStep(state=state)
    reasons = limits.releases(state, seen, config)

    def step(gpu_state: GpuState) -> Step:
        reason = reasons.get(gpu_state.gpu.uuid)
        if reason is None:
            return Step(gpu_state=gpu_state)
        event = gpu_event("gpu.released", gpu_state, seen.now, reason=reason)
        kill_at = seen.now + config.grace
        stopped = lifecycle.stop(gpu_state, StopCause.POLICY, seen.now, kill_at)
        return replace(stopped, events=(event,))

    return _step_each(state, step)


def _step_each(state: State, step: Callable[[GpuState], Step]) -> NodeStep:
    """Apply one step to every GPU."""
    steps = {uuid: step(gpu_state) for uuid, gpu_state in state.gpu_states.items()}
    return NodeStep(
        state=state.with_gpu_states({uuid: one.gpu_state for uuid, one in steps.items()}),
        actions=tuple(action for one in steps.values() for action in one.actions),
        events=tuple(event for one in steps.values() for event in one.events),
    )


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


def _wake_at(state: State, seen: Observation, config: Config) -> float:
    """Compute when the next tick is due at the latest; now, if another GPU awaits its start."""
    times = [state.next_status, probe_supervision.deadline(state, seen.readings, config, seen.now)]
    times += limits.deadlines(state, seen, config)
    times += commands.deadlines(state)
    api = api_supervision.deadline(state)
    times += [api] if api is not None else []
    times += [suspect.until for suspect in state.suspects.values()]
    if config.run_for is not None:
        times.append(state.counted_from + config.run_for)
    if state.shutdown is not None:
        times += [state.shutdown.kill_at, state.shutdown.give_up_at]
    for uuid, gpu_state in state.gpu_states.items():
        reading = seen.readings.get(uuid)
        own = config.of(uuid)
        dues = (
            lifecycle.deadline(gpu_state, own),
            pace_controller.deadline(gpu_state, seen.now, own),
            leaks.clearing_due(gpu_state, reading, own),
            watch_list.confirmation_due(gpu_state),
        )
        times += [due for due in dues if due is not None]
        if reading is not None and not isinstance(gpu_state.occupancy, Unknown):
            times.append(min(reading.at, reading.processes_at) + stale_after(gpu_state, config))
    if not config.dry_run and next(starts.startable(state, seen, config), None) is not None:
        return seen.now
    return min(time for time in times if time > seen.now)
