"""Advance every GPU through the plan of a burn-in, and end it when all are done. Pure.

The workload of a GPU's phase is a setting of that GPU. So a phase that is done changes a setting,
and the stressor is released and started again as after any change of settings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sentinel.config.model import Config
from sentinel.config.plan import Phase, Plan
from sentinel.config.verified_work import is_done
from sentinel.core import child_facts, health
from sentinel.core.burnin import groups, progress
from sentinel.core.burnin.progress import Burnin
from sentinel.core.burnin.settings import is_repeated
from sentinel.core.gpu_state import (
    Backoff,
    Busy,
    Fatal,
    GpuState,
    Idle,
    Running,
    Starting,
    Stopped,
    Stopping,
    Stressor,
    Unknown,
)
from sentinel.core.node.gpu_settings import lay_settings
from sentinel.core.observation import Observation
from sentinel.core.state import State, each_gpu
from sentinel.core.step import Event, Step, gpu_event, upcoming
from sentinel.core.teardown import pause_of
from sentinel.protocol.burnin_events import (
    TOO_HOT,
    Ended,
    Interrupted,
    PhaseEnded,
    PhaseStarted,
    Published,
    Warm,
    fields_of,
)
from sentinel.protocol.stressor import (
    Failed,
    LinkMeasured,
    MemoryCovered,
    Progress,
    ReferenceChecksum,
    SelftestDone,
    SelftestResult,
    UnitExercised,
)
from sentinel.protocol.views import FAULTY, HealthCause

#: A GPU that cannot be read for so long does no more phases, in seconds: a driver call that hangs
#: for 3 s has made its GPU unreadable, and a driver that was restarted is back by then.
UNREADABLE_S = 60.0
#: A GPU that could be read for so long can be read again, in seconds. A probe that ends in a loop
#: reads each GPU for a moment whenever it starts.
READABLE_S = 10.0
#: A GPU that is too hot to begin, and without work, does no more phases after so long, in seconds.
HOT_S = 600.0
#: A phase is given up once the GPU's own temperature limit has ended so many stretches of it.
MAX_OVERHEATS = 5

#: The messages of stressors that a record of a burn-in keeps as they are.
MEASURED = (Failed, LinkMeasured, ReferenceChecksum, SelftestDone, SelftestResult, UnitExercised)


def advance(state: State, seen: Observation) -> Step[State]:
    """Count the work of this tick, and set the workload of each GPU's phase."""
    if not is_planned(state):
        return Step(state)
    step = groups.break_up(state, seen.now).then(_advance_gpus, seen)
    for uuid, gpu_state in step.state.gpu_states.items():
        own = state.config.of(uuid)
        if gpu_state.progress.workload(own.plan) not in {None, own.workload}:
            return step._replace(state=lay_settings(step.state))
    return step


def _advance_gpus(state: State, seen: Observation) -> Step[State]:
    return each_gpu(state, seen, lambda gpu, _, own: _advance_gpu(gpu, state, seen, own))


def cut_short(state: State, seen: Observation) -> Step[State]:
    """End the plan of every GPU when a shutdown has begun, and report what was done of it."""
    if state.shutdown is None or not is_planned(state):
        return Step(state)
    return end_plans(state, seen, state.shutdown.reason, state.gpu_states)


def end_plans(state: State, seen: Observation, reason: str, uuids: Iterable[str]) -> Step[State]:
    """End the plan of each of these GPUs that has not done it, for a reason."""
    ended = set(uuids)

    def step(gpu_state: GpuState, seen: Observation, config: Config) -> Step[GpuState]:
        plan, before = config.plan, gpu_state.progress
        if plan is None or gpu_state.gpu.uuid not in ended or before.finished(plan):
            return Step(gpu_state)
        burnin = progress.end(before, plan, reason)
        gpu_state = replace(gpu_state, burnin=burnin)
        return Step(gpu_state, events=_events(gpu_state, before, burnin, plan, seen.now))

    return each_gpu(state, seen, step)


def report_measurements(state: State, seen: Observation) -> Step[State]:
    """Report what stressors of the burn-in have measured, which only its client records."""
    events = []
    for uuid in state.burnin_run.view.gpus if state.burnin_run is not None else ():
        facts = seen.children.get(uuid)
        for message in facts.messages if facts is not None else ():
            if isinstance(message, MEASURED):
                fields = {"kind": type(message).__name__, "values": vars(message)}
                event = gpu_event("burnin.measured", state.gpu_states[uuid], seen.now, **fields)
                events.append(event)
    return Step(state, events=tuple(events))


def end_if_done(state: State, seen: Observation) -> Step[State]:
    """Give each GPU that is done its settings back, and end the burn-in once all are done.

    A GPU is done once its stressor is gone or cannot be killed: its last results are of the run.
    """
    run = state.burnin_run
    if run is None:
        return Step(state)
    newly = {
        uuid: burnin
        for uuid in run.view.gpus
        if uuid not in run.done
        and (burnin := state.gpu_states[uuid].progress).finished(run.plan)
        and not _may_report(state.gpu_states[uuid].stressor)
    }
    if newly:
        # A plan of its own settings begins with its first phase.
        state = state.change_gpus(lambda gpu_state: replace(gpu_state, burnin=None), newly)
        run = replace(run, done={**run.done, **newly})
        state = lay_settings(replace(state, burnin_run=run))
    if len(run.done) < len(run.view.gpus):
        return Step(state)
    fields = {"id": run.view.id, "plan": run.plan.name}
    event = Event(name="burnin.run_ended", at=seen.now, fields=fields)
    return Step(replace(state, burnin_run=None), events=(event,))


def _may_report(stressor: Stressor) -> bool:
    """Check whether a stressor may report more results."""
    match stressor:
        case Stopping(reported=unkillable):
            return not unkillable
        case _:
            return isinstance(stressor, Starting | Running)


def is_planned(state: State) -> bool:
    """Check whether a GPU may have a plan."""
    return state.config.plan is not None or state.burnin_run is not None


def _advance_gpu(
    gpu_state: GpuState, state: State, seen: Observation, config: Config
) -> Step[GpuState]:
    """Count the work of one GPU, and end its phase if that is done or cannot be."""
    plan = config.plan
    if plan is None:
        return Step(gpu_state)
    now, repeat = seen.now, is_repeated(state, gpu_state.gpu.uuid)
    if gpu_state.burnin is None:
        gpu_state = replace(gpu_state, burnin=Burnin())
    before = burnin = gpu_state.progress
    if not burnin.begun and not burnin.finished(plan):
        gpu_state = replace(gpu_state, burnin=replace(burnin, begun=True))
        return Step(gpu_state, events=(_phase_started(gpu_state, burnin, plan, now),))
    if burnin.finished(plan):
        again = repeat and state.shutdown is None and not isinstance(gpu_state.occupancy, Unknown)
        return Step(replace(gpu_state, burnin=Burnin()) if again else gpu_state)
    phase = plan.phases[burnin.phase]
    burnin = _count(gpu_state, burnin, phase, seen)
    given_up, gpu_state, burnin = _why_given_up(gpu_state, burnin, plan, now, repeat=repeat)
    burnin = _follow_health(gpu_state, before, burnin, config)
    given_up = given_up or progress.why_in_vain(burnin) or _why_too_hot(burnin)
    given_up = given_up or groups.why_given_up(burnin, plan)
    burnin = _follow_reads(gpu_state, burnin, plan, state, seen)
    if not repeat and (why := _why_never_begun(gpu_state, now, config)):
        burnin = progress.end(burnin, plan, why)
    if burnin.fail_fast and (burnin.errors or gpu_state.findings.total > burnin.findings_before):
        burnin = progress.end(burnin, plan, "an error was found (--fail-fast)")
    # A group ends as a whole, by the work of all members until the last tick.
    done = is_done(phase, burnin.current)
    if phase.together:
        done = groups.are_done(state, burnin.group, plan)
    if burnin.ended is None and (given_up is not None or done):
        burnin = progress.next_phase(burnin, plan, given_up)
        if given_up is None:  # the GPU can work: the pauses begin again at their minimum
            gpu_state = replace(gpu_state, streak=0)
    gpu_state = replace(gpu_state, burnin=burnin)
    due = None if burnin.unreadable is None else burnin.unreadable + UNREADABLE_S
    events = _events(gpu_state, before, burnin, plan, now)
    return Step(gpu_state, events=events, due=upcoming(now, due))


def _events(
    gpu_state: GpuState, before: Burnin, burnin: Burnin, plan: Plan, now: float
) -> tuple[Event, ...]:
    """Report what has changed."""
    found: list[Published] = []
    phase, work = plan.phases[before.phase].name, burnin.work[before.phase]
    if work.interruptions > before.current.interruptions:
        found.append(Interrupted(phase=phase, stretch_s=before.current.stretch))
    if burnin.warm and not before.warm:
        found.append(Warm(phase=phase))
    over = burnin.phase != before.phase or burnin.ended is not None
    if over:
        found.append(PhaseEnded(phase=phase, work=work))
    events = [_published(event, gpu_state, now) for event in found]
    if burnin.finished(plan):
        events += child_facts.window_until(gpu_state, now)
        events.append(_published(Ended(plan=plan.name, reason=burnin.ended), gpu_state, now))
    elif over:
        events.append(_phase_started(gpu_state, burnin, plan, now))
    return tuple(events)


def _phase_started(gpu_state: GpuState, burnin: Burnin, plan: Plan, now: float) -> Event:
    """Report that the next phase is due, and the work that is left then."""
    left = progress.seconds_left(burnin, plan)
    event = PhaseStarted(**phase_fields(plan, burnin.phase), left_s=left)
    return _published(event, gpu_state, now)


def _published(event: Published, gpu_state: GpuState, now: float) -> Event:
    return gpu_event(event.name, gpu_state, now, **fields_of(event))


def phase_fields(plan: Plan, number: int) -> dict[str, Any]:
    """Return a phase as fields of an event."""
    phase = plan.phases[number]
    return {"phase": phase.name, "number": number + 1, "phases": len(plan.phases)}


def _count(gpu_state: GpuState, burnin: Burnin, phase: Phase, seen: Observation) -> Burnin:
    """Count the new messages of the stressor, or the end of a stretch."""
    facts = seen.children.get(gpu_state.gpu.uuid)
    if facts is not None:  # also of one that is stopping
        wrong = sum(message.errors for message in facts.messages if isinstance(message, Progress))
        burnin = replace(burnin, errors=burnin.errors + wrong) if wrong else burnin
    if facts is not None and _works_on(gpu_state, phase, facts.generation):
        reading = seen.readings.get(gpu_state.gpu.uuid)
        temperature = reading.temperature if reading is not None else None
        for message in facts.messages:
            if isinstance(message, Progress):
                burnin = progress.count(burnin, phase, message, temperature, seen.now)
            elif isinstance(message, MemoryCovered):
                burnin = progress.cover(burnin, phase, message)
    if not gpu_state.is_live:
        burnin = progress.interrupt(burnin, phase)
    return burnin


def _works_on(gpu_state: GpuState, phase: Phase, generation: int) -> bool:
    """Check that a child is the running stressor of this phase, and not of an earlier one."""
    spec = gpu_state.launch.spec
    return (
        isinstance(gpu_state.stressor, Running)
        and gpu_state.generation == generation
        and spec is not None
        and spec.workload == phase.workload
    )


def _why_given_up(
    gpu_state: GpuState, burnin: Burnin, plan: Plan, now: float, *, repeat: bool
) -> tuple[str | None, GpuState, Burnin]:
    """Explain why the rest of a phase cannot be done, or return None; count the failures.

    The next phase has another workload, which may be able to run, so it begins at once. A plan that
    is repeated would so fail again and again: there, the growing pause of any failure applies.
    """
    match gpu_state.stressor:
        case Backoff(reason=reason) | Fatal(reason=reason) as stressor if (
            gpu_state.generation != burnin.failed_generation
            and gpu_state.failures
            and gpu_state.failures[-1] >= gpu_state.launch.at
        ):
            failures = burnin.failures + 1
            burnin = replace(burnin, failures=failures, failed_generation=gpu_state.generation)
            if isinstance(stressor, Fatal) or failures >= plan.max_failures:
                after: Stopped | Backoff = Stopped()
                if repeat:
                    after = Backoff(until=now + pause_of(gpu_state), reason=reason)
                return reason, replace(gpu_state, stressor=after, failures=()), burnin
    return None, gpu_state, burnin


def _follow_health(gpu_state: GpuState, before: Burnin, burnin: Burnin, config: Config) -> Burnin:
    """Count the stretches that the GPU's own temperature limit has ended."""
    interrupted = burnin.current.interruptions > before.current.interruptions
    if interrupted and health.forbidding_cause(gpu_state, config):
        return replace(burnin, overheats=burnin.overheats + 1)
    return burnin


def _why_too_hot(burnin: Burnin) -> str | None:
    if burnin.overheats < MAX_OVERHEATS:
        return None
    return f"the GPU has reached its own temperature limit {burnin.overheats} times"


def _why_never_begun(gpu_state: GpuState, now: float, config: Config) -> str | None:
    """Explain why waiting for a GPU would keep the whole run waiting, or return None.

    MIG mode ends by an operator's command alone; a GPU without work has no reason to cool down.
    """
    if isinstance(gpu_state.occupancy, Busy) and gpu_state.occupancy.rule == "mig":
        return "it is not tested: MIG is enabled"
    until = cools_until(gpu_state, config)
    if until is not None and now >= until:
        return TOO_HOT
    return None


def cools_until(gpu_state: GpuState, config: Config) -> float | None:
    """Compute how long an idle GPU may stay too hot to begin; None if it is not."""
    idle, known = gpu_state.occupancy, gpu_state.health
    if not isinstance(idle, Idle) or known is None or gpu_state.is_live:
        return None
    is_hot = health.forbidding_cause(gpu_state, config) is HealthCause.TEMPERATURE
    return max(idle.since, known.heat_since) + HOT_S if is_hot else None


def _is_faulty(gpu_state: GpuState, state: State, seen: Observation) -> bool:
    """Check whether a GPU cannot be read because of itself."""
    uuid = gpu_state.gpu.uuid
    reading = seen.readings.get(uuid)
    return uuid in state.suspects or (reading is not None and reading.lost)


def _follow_reads(
    gpu_state: GpuState, burnin: Burnin, plan: Plan, state: State, seen: Observation
) -> Burnin:
    """End the plan of a GPU that cannot be read for a long time.

    It waits for a driver that an operator has released, like for the end of any other pause.
    """
    now = seen.now
    unreadable, readable = burnin.unreadable, None
    if state.driver_released is not None:
        unreadable = None
    elif isinstance(gpu_state.occupancy, Unknown):
        unreadable = now if unreadable is None else unreadable
    elif unreadable is not None:
        readable = now if burnin.readable is None else burnin.readable
        if now >= readable + READABLE_S:
            unreadable = readable = None
    if (unreadable, readable) != (burnin.unreadable, burnin.readable):
        burnin = replace(burnin, unreadable=unreadable, readable=readable)
    is_over = unreadable is not None and now >= unreadable + UNREADABLE_S
    if not is_over or not isinstance(gpu_state.occupancy, Unknown):
        return burnin
    what = FAULTY if _is_faulty(gpu_state, state, seen) else "it cannot be read"
    return progress.end(burnin, plan, f"{what}: {gpu_state.occupancy.reason}")
