"""Start, watch and replace the probe, and list what it is to read. Pure.

GPUs on which it hangs or crashes are excluded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from sentinel.core import newcomer, pace_controller, teardown
from sentinel.core.burnin import interface as burnin
from sentinel.core.gpu_state import (
    Busy,
    Fatal,
    GpuState,
    Idle,
    Running,
    Starting,
    Stopped,
    Stopping,
)
from sentinel.core.newcomer import held_since
from sentinel.core.node.serving_processes import (
    INITIALISATION_TIMEOUT_S,
    failed,
    is_ready,
    started,
    stopped,
)
from sentinel.core.observation import Call, Observation, ProbeFacts, WatchTimes
from sentinel.core.state import Probe, State, Suspect, kept_free
from sentinel.core.step import Event, KillProcess, Role, SendTo, StartProcess, Step, upcoming
from sentinel.errors import ChildExitCode
from sentinel.protocol.gpu import Reading
from sentinel.protocol.probe import Watch
from sentinel.units import format_exit

#: A driver call that has not returned after so long hangs, in seconds. The slowest seen was 0.3 s,
#: while a context was torn down.
CALL_TIMEOUT_S = 3.0
#: A probe that reads no held GPU for so long is stopped, in seconds; it reads them every 25 ms.
STOPPED_AFTER_S = 1.0
#: How often to check whether a probe killed for a release of the driver is gone, in seconds.
GONE_POLL_S = 0.1
#: How long a GPU is excluded after a hang or crash, at first and at most, in seconds.
MIN_EXCLUSION_S = 10.0
MAX_EXCLUSION_S = 600.0
#: The signals of a crash: SIGILL, SIGABRT, SIGBUS, SIGFPE and SIGSEGV. By others it was killed.
_CRASH_SIGNALS = frozenset({-4, -6, -7, -8, -11})
#: The exit codes of a probe that gave up or lost its supervisor; other codes are of foreign code.
_OWN_CODES = frozenset({ChildExitCode.FAILED, ChildExitCode.ORPHANED})

#: How long after the first reading that shows a GPU idle it is read again, in seconds: a start
#: needs two. A newcomer's PID was listed up to 60 ms after its first memory on an H200.
CONFIRM_AFTER_S = 0.25


def suspected(state: State, uuid: str, now: float) -> bool:
    """Check whether the probe must not read this GPU now."""
    suspect = state.suspects.get(uuid)
    return suspect is not None and now < suspect.until


def readable(state: State, gpu_state: GpuState, now: float) -> bool:
    """Check whether the probe must read this GPU now; see :func:`watch_list`."""
    match gpu_state.stressor:
        case Stopping(kill_sent=True, exit=None):
            return False
        case _:
            return not suspected(state, gpu_state.gpu.uuid, now)


def step(state: State, seen: Observation) -> Step[State]:
    """Apply the new facts about the probe, then take at most one step."""
    step, probe, facts = Step(state), state.probe, seen.probe
    if facts is not None and probe.running and facts.generation == probe.generation:
        step = _fold(state, probe, facts, seen)
    return step.then(_advance, facts.calls if facts is not None else (), seen)


def _advance(state: State, calls: tuple[Call, ...], seen: Observation) -> Step[State]:
    """Start, stop, release or watch the probe."""
    probe, now = state.probe, seen.now
    if probe.running and (state.driver_released is None or not _holds_nothing(state)):
        return _watch(state, probe, calls, seen)
    if probe.running:
        down = replace(stopped(probe, math.inf, "released"), gone=False)
        kill = KillProcess(role=Role.PROBE, generation=probe.generation)
        return Step(replace(state, probe=down), actions=(kill,), due=now + GONE_POLL_S)
    if state.driver_released is not None:
        gone = seen.probe_gone
        events = (Event(name="driver.released", at=now),) if gone > probe.gone else ()
        state = replace(state, probe=replace(probe, due=math.inf, gone=gone))
        return Step(state, events=events, due=math.inf if gone else now + GONE_POLL_S)
    if probe.due == math.inf:
        return Step(replace(state, probe=replace(probe, due=now)), due=now)
    if state.shutdown is not None or now < probe.due:
        return Step(state, due=upcoming(now, probe.due))
    excluded = tuple(
        uuid for uuid, gpu_state in state.gpu_states.items() if not readable(state, gpu_state, now)
    )
    start = StartProcess(role=Role.PROBE, generation=probe.generation, excluded=excluded)
    up = replace(started(probe, now), unused_at=-math.inf, watch=None)
    return Step(replace(state, probe=up), actions=(start,), due=now + CALL_TIMEOUT_S)


def _holds_nothing(state: State) -> bool:
    """Check that no child uses a GPU, so that the driver can be released."""
    return not any(gpu_state.is_held for gpu_state in state.gpu_states.values())


def _fold(state: State, probe: Probe, facts: ProbeFacts, seen: Observation) -> Step[State]:
    """Apply the probe's messages and its exit."""
    events: list[Event] = []
    now, due = seen.now, math.inf
    why = facts.failed if facts.unavailable is None else facts.unavailable.reason
    if why is not None:
        probe = replace(probe, failed=why)
    if facts.inventory is not None:
        # Silence counts from now: initialising the driver may take longer than its limit.
        probe = replace(probe, works=True, worked_at=now, since=now, reason=None)
        fields: dict[str, object] = {
            "driver": facts.inventory.driver,
            "gpus": len(facts.inventory.gpus),
        }
        events.append(Event(name="probe.ready", at=now, fields=fields))
    if facts.inventory is not None:
        state = _renumbered(state, {gpu.uuid: gpu.index for gpu in facts.inventory.gpus})
    if facts.listed is not None:
        state = _renumbered(state, facts.listed.indices)
    if facts.unavailable is not None:
        fields = {"code": facts.unavailable.code, "reason": facts.unavailable.reason}
        events.append(Event(name="driver.unavailable", at=now, fields=fields))
    state = state if probe is state.probe else replace(state, probe=probe)
    if facts.exit is not None:
        state = _ended(state, probe.failed or format_exit(facts.exit.code), seen)
        due = now  # the next tick judges the GPUs that are left out
        fields = {"exit_code": facts.exit.code, "pause_s": state.probe.due - now}
        fields |= {"reason": probe.failed} if probe.failed is not None else {}
        state, blamed = _blame(state, facts, facts.exit.code, now)
        if blamed is not None and blamed.uuid is not None:
            left_out = state.suspects[blamed.uuid].until - now
            fields |= {"call": blamed.name, "left_out_s": left_out}
        gpu = blamed.uuid if blamed is not None else None
        events.append(Event(name="probe.exited", at=now, gpu=gpu, fields=fields))
    return Step(state, events=tuple(events), due=due)


def _renumbered(state: State, listed: Mapping[str, int]) -> State:
    """Note for each GPU what nvidia-smi's numbers are now, if its index is not its number."""
    uuids = {index: uuid for uuid, index in listed.items()}
    gpu_states = {}
    for uuid, gpu_state in state.gpu_states.items():
        index, now = gpu_state.gpu.index, listed.get(uuid)
        text = None if now == index else f"nvidia-smi has it as {now} now"
        if now is None:
            other = uuids.get(index)
            text = (
                f"nvidia-smi's {index} is {other} now" if other else "nvidia-smi lists it no more"
            )
        gpu = replace(gpu_state.gpu, renumbered=text)
        gpu_states[uuid] = gpu_state if gpu == gpu_state.gpu else replace(gpu_state, gpu=gpu)
    return state.with_gpu_states(gpu_states)


def _blame(state: State, facts: ProbeFacts, code: int, now: float) -> tuple[State, Call | None]:
    """Exclude every GPU with a call in flight when the probe crashed, or foreign code ended it.

    Any of them may be the cause, and would end the next probe as well.

    Returns:
        The new state, and the latest call in flight, for the event.
    """
    if code in _OWN_CODES or (code < 0 and code not in _CRASH_SIGNALS):
        return state, None
    calls = [call for call in facts.calls if call.uuid is not None]
    last = {call.uuid: call for call in sorted(calls, key=lambda call: call.since)}
    for uuid, call in last.items():
        if uuid is not None:
            state = _suspect(state, uuid, call.name, now, crashed=True)
    return state, max(calls, key=lambda call: call.since, default=None)


def _ended(state: State, reason: str, seen: Observation) -> State:
    """Schedule the next probe; one that a spare one becomes needs no pause."""
    probe = replace(failed(state.probe, reason, seen.now), gone=False)
    if is_ready(state.spare_probe, seen.spare_probe):
        probe = replace(probe, due=seen.now)
    return replace(state, probe=probe)


def _watch(state: State, up: Probe, calls: tuple[Call, ...], seen: Observation) -> Step[State]:
    """Replace a probe that hangs in a call or is silent."""
    config = state.config
    if not any(readable(state, gpu_state, seen.now) for gpu_state in state.gpu_states.values()):
        up = replace(up, unused_at=seen.now)
        state = replace(state, probe=up)
    stuck = [call for call in calls if seen.now >= _hangs_at(call)]
    hung = min(stuck, key=lambda call: call.since, default=None)
    seen_at = _last_sign_of_life(state, up, seen.readings)
    # All GPUs may be read at the slow poll; one that is held shows a stopped probe sooner.
    limit = config.stale_after + (config.poll if config.poll > config.quick_poll else 0.0)
    silent_at = seen_at + (limit if up.works else INITIALISATION_TIMEOUT_S)
    stopped_at = _stopped_at(state, up, calls, seen) if up.works else math.inf
    if hung is None and seen.now < min(silent_at, stopped_at):
        # A call may begin after this look, and hang.
        later = seen.now + CALL_TIMEOUT_S
        return Step(state, due=min([silent_at, stopped_at, later, *map(_hangs_at, calls)]))
    fields: dict[str, object] = {"silent_s": seen.now - seen_at}
    if hung is not None:
        fields |= {"call": hung.name, "since_s": seen.now - hung.since}
        if hung.uuid is not None:
            state = _suspect(state, hung.uuid, hung.name, seen.now)
            fields["pause_s"] = state.suspects[hung.uuid].until - seen.now
    event = Event(name="probe.hung", at=seen.now, gpu=hung.uuid if hung else None, fields=fields)
    state = _ended(state, "it hung", seen)
    kill = KillProcess(role=Role.PROBE, generation=up.generation)
    return Step(state, actions=(kill,), events=(event,), due=seen.now)


def _stopped_at(state: State, up: Probe, calls: tuple[Call, ...], seen: Observation) -> float:
    """Compute when no held GPU has been read for too long although no driver call explains it."""
    in_calls = {call.uuid for call in calls}
    last_reads = []
    for uuid, times in seen.watched.items():
        gpu_state = state.gpu_states[uuid]
        since = held_since(gpu_state)
        if since is None or uuid in in_calls or not readable(state, gpu_state, seen.now):
            continue
        last_reads.append(max(since, up.since, state.stalled_at or up.since, times.probe))
    return max(last_reads, default=math.inf) + STOPPED_AFTER_S


def _hangs_at(call: Call) -> float:
    """Compute when a driver call has taken too long."""
    return call.since + (INITIALISATION_TIMEOUT_S if call.uuid is None else CALL_TIMEOUT_S)


def _suspect(state: State, uuid: str, call: str, now: float, *, crashed: bool = False) -> State:
    """Exclude a GPU, for longer each time."""
    before = state.suspects.get(uuid)
    strikes = before.strikes + 1 if before else 1
    pause = min(MAX_EXCLUSION_S, MIN_EXCLUSION_S * 2 ** (strikes - 1))
    suspect = Suspect(until=now + pause, strikes=strikes, call=call, crashed=crashed)
    return replace(state, suspects={**state.suspects, uuid: suspect})


def _last_sign_of_life(state: State, up: Probe, readings: Mapping[str, Reading]) -> float:
    """Compute when the probe was last known to work; a stall of the supervisor counts as that."""
    stamps = [reading.at for uuid, reading in readings.items() if uuid in state.gpu_states]
    return max([up.since, up.unused_at, state.stalled_at or up.since, *stamps])


def watch_gpus(state: State, seen: Observation) -> Step[State]:
    """Tell the probe what to read, if that has changed."""
    if not state.probe.running:
        return Step(state)
    wanted, now = watch_list(state, seen.watched, seen.now), seen.now
    dues = (confirmation_due(gpu_state) for gpu_state in state.gpu_states.values())
    due = upcoming(now, *dues, *(suspect.until for suspect in state.suspects.values()))
    if wanted == state.probe.watch:
        return Step(state, due=due)
    state = replace(state, probe=replace(state.probe, watch=wanted))
    return Step(state, actions=(SendTo(role=Role.PROBE, message=wanted),), due=due)


def watch_list(state: State, times: Mapping[str, WatchTimes], now: float) -> Watch:
    """Build the watch list of the probe; a GPU is held while a child may live on it.

    A GPU whose child was killed is not read until the exit is seen: its readings decide nothing,
    and calls into a driver that tears a context down block, and delay the teardown.

    Args:
        state: The state after a tick.
        times: When the memory of each held GPU was last read.
        now: The time.
    """
    read, held, at_once, shared, slow, load = [], [], [], [], [], []
    config = state.config
    telemetry = state.api is not None or burnin.is_planned(state)
    for uuid, gpu_state in state.gpu_states.items():
        if not readable(state, gpu_state, now):
            continue
        match gpu_state.stressor:
            case Starting() | Running() | Stopping():
                held.append(uuid)
        due = confirmation_due(gpu_state)
        if isinstance(gpu_state.stressor, Running) or (due is not None and now >= due):
            at_once.append(uuid)
        if config.poll > config.quick_poll and _nothing_is_due(state, gpu_state, now):
            slow.append(uuid)
        running = isinstance(gpu_state.stressor, Running) and uuid in times
        if running and newcomer.alternates(times[uuid], now, config):
            shared.append(uuid)
        if (
            telemetry  # clients see the utilization
            or teardown.needs_utilization(gpu_state, now)
            or pace_controller.needs_utilization(gpu_state)
        ):
            load.append(uuid)
        read.append(uuid)
    return Watch(
        gpus=tuple(read),
        held=tuple(held),
        at_once=tuple(at_once),
        shared=tuple(shared),
        slow=tuple(slow),
        load=tuple(load),
        telemetry=telemetry,
    )


def _nothing_is_due(state: State, gpu_state: GpuState, now: float) -> bool:
    """Check that a GPU is used by others, or is not to be occupied, so that a late reading will do.

    An idle GPU that may be occupied is read often, since its idle time must be without a gap; and a
    reserved one or one with allocations, since clients wait for its memory.
    """
    if not isinstance(gpu_state.stressor, Stopped | Fatal) or gpu_state.allocations:
        return False
    kept = kept_free(state, gpu_state)
    if kept is not None:
        return kept.admin != "RESERVED"
    if teardown.needs_utilization(gpu_state, now):
        return False
    return isinstance(gpu_state.occupancy, Busy) or state.config.dry_run


def confirmation_due(gpu_state: GpuState) -> float | None:
    """Compute when an idle GPU is to be read a second time; None without an idle GPU."""
    match gpu_state.occupancy:
        case Idle(since=since) if gpu_state.child is None:
            # A reading may be older than a poll when it arrives.
            return since + CONFIRM_AFTER_S
        case _:
            return None
