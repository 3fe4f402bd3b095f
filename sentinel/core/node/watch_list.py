"""Build the list of what the probe is to read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sentinel.core.actions import WatchGpus
from sentinel.core.gpu import leaks, pace_controller, watchers
from sentinel.core.gpu_state import Busy, GpuState, Idle
from sentinel.core.node import probe_supervision
from sentinel.core.node.admin import admin_hold
from sentinel.core.observation import Observation, WatchTimes
from sentinel.core.state import ProbeUp, State
from sentinel.core.step import Step, upcoming
from sentinel.core.stressor_state import Fatal, Running, Starting, Stopped, Stopping
from sentinel.protocol.probe import Watch

#: How long after the first reading that shows a GPU idle it is read again, in seconds: a start
#: needs two. A newcomer's PID was listed up to 60 ms after its first memory on an H200.
CONFIRM_AFTER_S = 0.25


def watch(state: State, seen: Observation) -> Step[State]:
    """Tell the probe what to read, if that has changed."""
    if not isinstance(state.probe, ProbeUp):
        return Step(state)
    wanted, now = watch_list(state, seen.watched, seen.now), seen.now
    dues = (confirmation_due(gpu_state) for gpu_state in state.gpu_states.values())
    due = upcoming(now, *dues, *(suspect.until for suspect in state.suspects.values()))
    if wanted == state.probe.watch:
        return Step(state, due=due)
    state = replace(state, probe=replace(state.probe, watch=wanted))
    return Step(state, actions=(WatchGpus(watch=wanted),), due=due)


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
    telemetry = state.api is not None or config.plan is not None
    for uuid, gpu_state in state.gpu_states.items():
        if not probe_supervision.readable(state, gpu_state, now):
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
        if running and watchers.alternates(times[uuid], now, config):
            shared.append(uuid)
        if (
            telemetry  # clients see the utilisation
            or leaks.needs_utilization(gpu_state, now)
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
    hold = admin_hold(state, gpu_state)
    if hold is not None:
        return hold.admin != "RESERVED"
    if leaks.needs_utilization(gpu_state, now):
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
