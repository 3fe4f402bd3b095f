"""The decision of one tick: folds the probe, the policy and the lifecycle over all GPUs. Pure.

``decide(state, observation, config)`` is all that the supervisor thinks. Two values to paste into a
test are a bug report.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentinel.config.model import Config
from sentinel.core.actions import (
    Acknowledge,
    Action,
    Ask,
    Event,
    Kill,
    KillProbe,
    KillService,
    Reply,
    RequestReload,
    SetPace,
    Start,
    StartProbe,
    StartService,
)
from sentinel.core.events import gpu_event, who
from sentinel.core.gpu import (
    allocations,
    findings,
    health,
    ignored_processes,
    leaks,
    lifecycle,
    occupancy,
    pace_controller,
    pid_mapping,
)
from sentinel.core.gpu.teardown import Step
from sentinel.core.identity import Identity
from sentinel.core.node import (
    allocation_commands,
    api_supervision,
    commands,
    limits,
    probe_supervision,
    shutdown,
    status_events,
)
from sentinel.core.node.admin import admin_hold
from sentinel.core.observation import Observation
from sentinel.core.state import (
    Busy,
    GpuState,
    Idle,
    Occupancy,
    ProbeDown,
    ProbeState,
    ProbeUp,
    Running,
    ServiceDown,
    ServiceUp,
    Starting,
    State,
    StopCause,
    Stopping,
    Unknown,
)
from sentinel.protocol.gpu import Gpu, Reading
from sentinel.protocol.probe import Watch

#: The supervisor did not run for so long: children's leases may have run out by our own fault.
STALL = 1.0
#: For how long it is remembered that somebody claimed a GPU, in seconds.
HOUR = 3600.0
#: So many claims within that are answered by a plain ``rearm``.
CLAIMS_FOR_FREE = 3
#: All that is seen of one newcomer, its memory and then its process, comes within so many seconds.
ONE_CLAIM = 1.0
#: How long after a stall its consequences may still come in, in seconds.
STALL_ECHO = 10.0


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a tick led to: kills come first among the actions, and at most one Start, last.

    ``config`` is what holds from now on, ``wake_at`` when the next tick is due even if nothing
    happens.
    """

    state: State
    config: Config
    actions: tuple[Action, ...]
    events: tuple[Event, ...]
    wake_at: float


def first_state(
    gpus: tuple[Gpu, ...],
    now: float,
    config: Config,
    probe: ProbeState | None = None,
    hidden: str | None = None,
    *,
    serves: bool = False,
) -> State:
    """Return the state before the first tick: nothing is known of any GPU.

    Args:
        gpus: The GPUs to care for.
        now: The time.
        config: For the first status report.
        probe: The probe that found the GPUs, where it goes on; without it, one is due.
        hidden: Why other people's processes may not be listed here; ``None`` where they are.
        serves: Whether somebody is to be served.
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
        service=api_supervision.first(now) if serves else None,
    )


def watch(state: State, now: float) -> Watch:
    """Return what the probe is to read: held is every GPU on which something of ours may live.

    A GPU whose child was killed is not touched until its exit is seen: there is nothing to decide
    from it, and calls into a driver that tears a context down block, and hold up those who wait.
    """
    read, held, load = [], [], []
    for uuid, gpu_state in state.gpu_states.items():
        if not probe_supervision.readable(state, gpu_state, now):
            continue
        match gpu_state.stressor:
            case Starting() | Running() | Stopping():
                held.append(uuid)
        # Whoever is served wants to see it, too.
        if (
            state.service is not None
            or leaks.may_have_load(gpu_state, now)
            or pace_controller.wants_load(gpu_state)
        ):
            load.append(uuid)
        read.append(uuid)
    telemetry = state.service is not None
    return Watch(gpus=tuple(read), held=tuple(held), load=tuple(load), telemetry=telemetry)


def decide(state: State, seen: Observation, config: Config) -> Decision:
    """Return what to do and say now, and what is known after it."""
    events: list[Event] = []
    if seen.stalled > STALL:
        state = replace(state, stalled_at=seen.now)
        events.append(Event(name="sentinel.stalled", at=seen.now, fields={"s": seen.stalled}))
    batch = commands.apply_commands(state, seen, config)
    state, config, actions = batch.state, batch.config, list(batch.actions)
    events += batch.events
    state, over = commands.expire(state, seen.now)
    events += over
    seen = replace(seen, stop=seen.stop or batch.stop)
    state, asked = shutdown.begin(state, seen, config)
    events += asked
    service = api_supervision.step(state, seen)
    if isinstance(state.service, ServiceUp) and isinstance(service.state.service, ServiceDown):
        forgotten, unheard = commands.forget_unconfirmed(service.state, seen.now)
        forgotten, undone = allocation_commands.forget_unconfirmed(forgotten, seen.now)
        service = replace(service, state=forgotten, events=(*service.events, *unheard, *undone))
    probe = probe_supervision.step(service.state, seen, config)
    state, actions = probe.state, [*actions, *service.actions, *probe.actions]
    events += [*service.events, *probe.events]
    gpu_states: dict[str, GpuState] = {}
    for uuid, gpu_state in state.gpu_states.items():
        step = _turn(state, gpu_state, seen, config)
        gpu_states[uuid] = step.gpu_state
        actions += step.actions
        events += step.events
    state = replace(state, gpu_states=gpu_states)
    state, gave_up = shutdown.give_up(state, seen.now)
    events += gave_up
    state, asks, released = _release(state, seen, config)
    actions += asks
    events += released
    state, starts, started = _start_one(state, seen, config)
    actions += starts
    events += started
    for say in (status_events.explain, status_events.report):
        state, said = say(state, seen, config)
        events += said
    state = replace(state, finished=shutdown.is_over(state, seen.now))
    return Decision(
        state=state,
        config=config,
        actions=tuple(sorted(actions, key=_urgency)),
        events=tuple(events),
        wake_at=_wake_at(state, seen, config),
    )


def _urgency(action: Action) -> int:
    """Return the rank of an action: kills first, spawns last."""
    match action:
        case Kill():
            return 0
        case KillProbe() | KillService():
            return 1
        case Ask() | Acknowledge() | SetPace() | Reply() | RequestReload():
            return 2
        case StartProbe() | StartService():
            return 3
        case Start():
            return 4


def _turn(state: State, gpu_state: GpuState, seen: Observation, config: Config) -> Step:
    """Fold in what happened on one GPU, then take at most one step there."""
    was, before, own = gpu_state, gpu_state.occupancy, config.of(gpu_state.gpu.uuid)
    reading = seen.readings.get(gpu_state.gpu.uuid)
    facts = seen.children.get(gpu_state.gpu.uuid)
    folded = found = Step(gpu_state=gpu_state)
    if facts is not None:
        found = findings.fold(gpu_state, facts, reading, seen.now)
        folded = lifecycle.fold(found.gpu_state, facts, seen.now)
    gpu_state, haunted = leaks.watch(folded.gpu_state, reading, seen.now)
    gpu_state, learned = pid_mapping.learn(gpu_state, reading, seen.now)
    resident_processes = ignored_processes.resident_processes(gpu_state, reading, own)
    if resident_processes != gpu_state.resident_processes:
        gpu_state = replace(gpu_state, resident_processes=resident_processes)
    gpu_state, judged = _judge(state, gpu_state, reading, seen, own)
    gpu_state, conditions = health.judge(gpu_state, reading, seen.now, own, gpu_state.child)
    judged += conditions
    if state.shutdown is not None:
        gpu_state = lifecycle.bring_forward(gpu_state, state.shutdown.kill_at)
    step = lifecycle.step(gpu_state, reading, seen.now, own, stalled=_stalled(state, seen.now))
    paced = pace_controller.step(step.gpu_state, reading, seen.now, own)
    gpu_state, actions = paced.gpu_state, (*found.actions, *step.actions, *paced.actions)
    came = any(event.name in {"gpu.busy", "gpu.yielding"} for event in (*judged, *step.events))
    haunts = isinstance(gpu_state.occupancy, Busy) and gpu_state.occupancy.rule == "leak"
    if came and not haunts and not isinstance(before, Busy):
        gpu_state = _claimed(gpu_state, before, seen, own)
    if isinstance(folded.gpu_state.stressor, Stopping) and not isinstance(
        gpu_state.stressor, Stopping
    ):
        # While it was there, what nobody accounts for was taken for its own.
        gpu_state, now = _judge(state, replace(gpu_state, ended=seen.now), reading, seen, own)
        judged += now
    if state.shutdown is not None and isinstance(gpu_state.stressor, Starting | Running):
        asked = lifecycle.stop(gpu_state, StopCause.SHUTDOWN, seen.now, state.shutdown.kill_at)
        gpu_state, actions = asked.gpu_state, (*actions, *asked.actions)
    if (type(gpu_state.occupancy), type(gpu_state.stressor)) != (type(before), type(was.stressor)):
        gpu_state = replace(gpu_state, changed=seen.now)
    events = (*found.events, *folded.events, *haunted, *learned, *judged, *step.events)
    return Step(gpu_state=gpu_state, actions=actions, events=(*events, *paced.events))


def _judge(
    state: State, gpu_state: GpuState, reading: Reading | None, seen: Observation, config: Config
) -> tuple[GpuState, list[Event]]:
    """Judge the occupancy anew, and say so when it is another."""
    child = gpu_state.child
    now = occupancy.occupancy(gpu_state, reading, seen.now, config, child=child)
    if probe_supervision.suspected(state, gpu_state.gpu.uuid, seen.now):
        suspect = state.suspects[gpu_state.gpu.uuid]
        what = "crashed" if suspect.crashed else "hung"
        now = Unknown(reason=f"the driver {what} in {suspect.call}; left out for a while")
    if state.released is not None and isinstance(state.probe, ProbeDown):
        now = Unknown(reason="the driver was let go of (pause --release)")
    before = gpu_state.occupancy
    if now == before:
        return gpu_state, []
    gpu_state = replace(gpu_state, occupancy=now)
    match before, now:
        case Busy(), Busy(processes=by) if [p.pid for p in before.processes] == [p.pid for p in by]:
            return gpu_state, []
        case _, Busy(reason=reason):
            return gpu_state, [
                gpu_event("gpu.busy", gpu_state, seen.now, reason=reason, processes=who(gpu_state))
            ]
        case Unknown(), Unknown():
            return gpu_state, []
        case _, Unknown(reason=reason):
            return gpu_state, [gpu_event("gpu.unknown", gpu_state, seen.now, reason=reason)]
        case _:
            return gpu_state, [
                gpu_event("gpu.idle", gpu_state, seen.now, left_alone_s=gpu_state.rearm)
            ]


def _claimed(gpu_state: GpuState, before: Occupancy, seen: Observation, config: Config) -> GpuState:
    """Return the slot with how long it is to be left alone after those who came just now.

    That is ``rearm``, and twice as long with each claim within the hour beyond the first few: whose
    jobs come and go all day should not find us between each two. Of that it is 50 to 150 %, by
    chance, so that two sentinels which cannot see each other settle. Who is found on a GPU of which
    nothing was known ``before`` may have been there all along, and is no new claim.
    """
    claims = tuple(at for at in gpu_state.claims if seen.now - at < HOUR)
    if isinstance(before, Idle) and not (claims and seen.now - claims[-1] < ONE_CLAIM):
        claims = (*claims, seen.now)
    doublings = max(0, len(claims) - CLAIMS_FOR_FREE)
    rearm = min(config.rearm * 2.0**doublings, max(config.rearm, config.rearm_longest))
    return replace(gpu_state, claims=claims, rearm=rearm * (0.5 + seen.random_value))


def _stalled(state: State, now: float) -> bool:
    return state.stalled_at is not None and now - state.stalled_at < STALL_ECHO


def _release(
    state: State, seen: Observation, config: Config
) -> tuple[State, list[Action], list[Event]]:
    """Let go of the GPUs that a rule over all of them wants to be free."""
    if state.shutdown is not None:
        return state, [], []
    actions: list[Action] = []
    events: list[Event] = []
    for release in limits.releases(state, seen, config):
        gpu_state = state.gpu_states[release.uuid]
        events.append(gpu_event("gpu.released", gpu_state, seen.now, reason=release.reason))
        asked = lifecycle.stop(gpu_state, StopCause.POLICY, seen.now, seen.now + config.grace)
        actions += asked.actions
        state = replace(state, gpu_states={**state.gpu_states, release.uuid: asked.gpu_state})
    return state, actions, events


def _startable(state: State, seen: Observation, config: Config) -> list[str]:
    """Return the GPUs on which a stressor may be started now."""
    if not _may_spawn(state):
        return []
    verdicts = limits.verdicts(state, seen, config)
    return [uuid for uuid, verdict in verdicts.items() if verdict.allowed]


def _start_one(
    state: State, seen: Observation, config: Config
) -> tuple[State, list[Action], list[Event]]:
    """Start a stressor on the first GPU that allows it: at most one a tick."""
    startable = _startable(state, seen, config)
    if config.dry_run:
        return state, [], []
    if not startable:
        return _clear_one(state, seen, config)
    uuid = startable[0]
    gpu_state = lifecycle.start(state.gpu_states[uuid], seen.readings[uuid], seen.now)
    gpu_state = replace(
        gpu_state,
        launch_spec=limits.launch_spec(config.of(uuid)),
        left_out=allocations.committed(gpu_state),
    )
    state = replace(state, gpu_states={**state.gpu_states, uuid: gpu_state}, last_start=seen.now)
    workload = config.of(uuid).workload
    event = gpu_event("stressor.starting", gpu_state, seen.now, workload=workload)
    committed = allocations.outstanding(gpu_state, seen.readings[uuid])
    start = Start(uuid=uuid, generation=gpu_state.generation, committed=committed)
    return state, [start], [event]


def _clear_one(
    state: State, seen: Observation, config: Config
) -> tuple[State, list[Action], list[Event]]:
    """Have a context opened and closed on the first GPU that has a ghost and is due."""
    if limits.quiet(seen, config) is not None or not _may_spawn(state):
        return state, [], []
    for uuid, gpu_state in state.gpu_states.items():
        reading = seen.readings.get(uuid)
        due = leaks.clearing_due(gpu_state, reading, config)
        if reading is None or due is None or seen.now < due:
            continue
        if not occupancy.is_fresh(reading, seen.now, config):
            continue
        if admin_hold(state, gpu_state, seen.now) is not None:
            continue  # somebody wants nothing of ours there, not even for a moment
        leak = replace(gpu_state.leak, clearings=gpu_state.leak.clearings + 1)
        begun = lifecycle.start(replace(gpu_state, leak=leak), reading, seen.now, clearing=True)
        begun = replace(begun, launch_spec=limits.launch_spec(config.of(uuid)))
        state = replace(state, gpu_states={**state.gpu_states, uuid: begun}, last_start=seen.now)
        event = gpu_event("gpu.cleanup_started", begun, seen.now, attempt=leak.clearings)
        return state, [Start(uuid=uuid, generation=begun.generation, clearing=True)], [event]
    return state, [], []


def _may_spawn(state: State) -> bool:
    """Return whether anything may be started at all: not while ending or without a probe.

    And not before anybody could control it, where somebody is to be served.
    """
    controlled = state.service is None or state.served
    up = isinstance(state.probe, ProbeUp) and state.probe.heard
    return state.shutdown is None and up and controlled


def _wake_at(state: State, seen: Observation, config: Config) -> float:
    """Return when the next tick is due at the latest; now, if another GPU waits for its start."""
    times = [state.next_status, probe_supervision.deadline(state, seen.readings, config, seen.now)]
    times += limits.deadlines(state, seen, config)
    times += commands.deadlines(state)
    service = api_supervision.deadline(state)
    times += [service] if service is not None else []
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
        )
        times += [due for due in dues if due is not None]
        if reading is not None and not isinstance(gpu_state.occupancy, Unknown):
            times.append(min(reading.at, reading.processes_at) + config.stale_after)
    if _startable(state, seen, config) and not config.dry_run:
        return seen.now
    return min(time for time in times if time > seen.now)
