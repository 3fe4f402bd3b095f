"""The life of the daemon: its shutdown, and what systemd is notified of."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from sentinel.config.model import Config
from sentinel.core.gpu_state import Busy, GpuState, Idle, Running, StopCause, Stopping, Unknown
from sentinel.core.node.daemon import (
    FIRST_START_S,
    SentNotifications,
    SystemdState,
    next_notification,
)
from sentinel.core.observation import Observation
from sentinel.core.state import Probe, Process, Shutdown, State, Suspect
from sentinel.core.step import Kill
from sentinel.protocol.gpu import Gpu, Reading
from tests.harness.core_scenarios import occupied, on_stressors
from tests.harness.world import World


def test_a_shutdown_requests_every_child_to_stop_and_kills_the_rest() -> None:
    world = occupied(gpus=3, config=Config(grace=5))
    world.child(1).unresponsive = True
    world.interrupts.pending = ("SIGTERM", False)
    world.supervisor.tick()
    assert len(world.spawner.stop_requests) == 3
    world.run(lambda: world.state.finished, within=7)
    assert [uuid for uuid, _ in world.spawner.killed] == ["GPU-1"]
    assert world.spawner.killed[0][1] - world.spawner.stop_requests[0][1] == pytest.approx(
        5, abs=0.05
    )


def test_a_second_interrupt_kills_at_once() -> None:
    world = occupied(gpus=2)
    for place in world.gpus.values():
        place.child.unresponsive = True  # type: ignore[union-attr]
    world.interrupts.pending = ("SIGINT", False)
    world.run_for(0.1)
    world.interrupts.pending = ("SIGINT", True)
    world.run_for(0.1)
    assert len(world.spawner.killed) == 2


def test_a_newcomer_during_a_shutdown_causes_a_kill_at_once() -> None:
    world = occupied()
    world.child().unresponsive = True
    world.interrupts.pending = ("SIGTERM", False)
    world.supervisor.tick()
    world.newcomer(0)
    assert on_stressors(world.supervisor.tick()) == (Kill(uuid="GPU-0", generation=1),)


def test_nothing_starts_during_a_shutdown() -> None:
    world = World(gpus=2)
    world.newcomer(0)
    world.run(lambda: world.events("stressor.ready"))
    world.child(1).unresponsive = True
    world.interrupts.pending = ("SIGTERM", False)
    world.supervisor.tick()
    world.at(0).foreign.clear()
    world.run(lambda: world.state.finished)
    assert len(world.spawner.started) == 1


def test_a_child_that_survives_sigkill_is_reported_and_never_replaced() -> None:
    world = occupied()
    world.newcomer(0)
    world.supervisor.tick()
    world.child().dies_at = world.now + 1e6
    world.run(lambda: world.events("stressor.unkillable"), within=11)
    world.at(0).foreign.clear()
    world.run_for(100)
    assert isinstance(world.gpu_state().stressor, Stopping)
    assert len(world.spawner.started) == 1
    assert len(world.events("stressor.unkillable")) == 1
    world.interrupts.pending = ("SIGTERM", False)
    world.run(lambda: world.state.finished, within=16)
    assert world.supervisor.run() == 7


def test_a_shutdown_without_a_probe_ends() -> None:
    world = occupied()
    world.probe.exits_with = -9
    world.interrupts.pending = ("SIGTERM", False)
    world.run(lambda: world.state.finished, within=7)
    assert world.probe.generation == 1, "no further probe is started"
    assert world.at(0).child is None
    assert world.supervisor.run() == 0


def test_the_configured_run_time_ends_the_daemon() -> None:
    world = occupied(config=Config(run_for=20))
    world.run(lambda: world.state.finished, within=21)
    assert world.events("sentinel.stopping")[0].fields["reason"] == "its time is over"
    assert world.supervisor.run() == 0


NOW = 1000.0
WATCHDOG = 30.0
UP = Probe(running=True, works=True, since=NOW - 100)
SENT = SentNotifications(
    ready=True, status="2 GPUs: 2 unknown", status_at=NOW - 50, watchdog_at=NOW - 20
)


def gpu_state(index: int) -> GpuState:
    gpu = Gpu(uuid=f"GPU-{index}", index=index, name="Fake", pci_bus_id="0", memory_total=1)
    return GpuState(gpu=gpu)


def state(gpus: int = 2, probe: Probe = UP, **more: Any) -> State:
    gpu_states = {f"GPU-{index}": gpu_state(index) for index in range(gpus)}
    return replace(State(gpu_states=gpu_states, config=Config(), started=0.0, probe=probe), **more)


def seen(*ages: float | None, fault: str | None = None) -> Observation:
    """Build an observation with readings of these ages, in seconds."""
    readings = {
        f"GPU-{index}": Reading(uuid=f"GPU-{index}", at=NOW - age, fault=fault)
        for index, age in enumerate(ages)
        if age is not None
    }
    return Observation(now=NOW, readings=readings)


def notification_of(
    of: State, what: Observation, sent: SentNotifications = SENT, watchdog: float | None = WATCHDOG
) -> SystemdState:
    return next_notification(of, what, sent, watchdog)


def states(world: World) -> list[GpuState]:
    return list(world.state.gpu_states.values())


def suspect(until: float) -> dict[str, Suspect]:
    return {"GPU-1": Suspect(until=until, strikes=1, call="nvmlDeviceGetMemoryInfo")}


# --- ready -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "more", "ready"),
    [
        (seen(None, None), {}, False),
        (seen(0.1, None), {}, False),
        (seen(0.1, 0.1), {}, True),
        (seen(0.1, 0.1, fault="lost"), {}, True),
        (seen(0.1, None), {"suspects": suspect(NOW + 5)}, True),
        (seen(0.1, None), {"suspects": suspect(NOW - 5)}, False),
        (seen(0.1, 0.1), {"shutdown": Shutdown(reason="x", kill_at=1, give_up_at=2)}, False),
        (seen(0.1, 0.1), {"api_required": True}, False),
        (seen(0.1, 0.1), {"api_required": True, "api": Process(worked_at=1.0)}, True),
    ],
)
def test_ready_is_sent_once_every_gpu_was_read_or_is_excluded(
    *, what: Observation, more: dict[str, Any], ready: bool
) -> None:
    first = notification_of(state(**more), what, SentNotifications())
    assert ("READY=1" in first.lines) == ready
    assert first.sent.ready == ready
    assert "READY=1" not in notification_of(state(**more), what, first.sent).lines or not ready


def test_ready_waits_for_the_first_stressors_and_not_for_later_ones() -> None:
    world = World(gpus=2)

    def ready() -> bool:
        what = Observation(now=world.now, readings=dict.fromkeys(world.gpus, reading))
        return notification_of(world.state, what, SentNotifications()).sent.ready

    reading = Reading(uuid="GPU-0", at=world.now)
    world.run(lambda: isinstance(states(world)[0].occupancy, Idle))
    while not all(isinstance(state.stressor, Running) for state in states(world)):
        assert not ready()
        world.supervisor.turn()
    assert ready()
    child = world.gpus["GPU-0"].child
    assert child is not None
    child.dies_at, child.code = world.now, 1
    world.run(lambda: len(world.events("stressor.starting")) == 3)
    assert ready()


def test_ready_does_not_wait_for_a_gpu_that_a_rule_leaves_idle() -> None:
    world = World(config=Config(dry_run=True))
    world.run_for(FIRST_START_S + 2)
    what = Observation(now=world.now, readings={"GPU-0": Reading(uuid="GPU-0", at=world.now)})
    assert notification_of(world.state, what, SentNotifications()).sent.ready


# --- the watchdog ----------------------------------------------------------------------------


def settling() -> State:
    """Build a state in which the second GPU's stressor was killed and has not exited."""
    gpu_states = dict(state().gpu_states)
    stuck = Stopping(
        since=NOW - 60,
        cause=StopCause.YIELD,
        kill_at=NOW - 60,
        kill_sent=True,
    )
    gpu_states["GPU-1"] = replace(gpu_states["GPU-1"], stressor=stuck)
    return state(gpu_states=gpu_states)


@pytest.mark.parametrize(
    ("of", "what", "fresh"),
    [
        (state(), seen(0.1, 0.9), True),
        (state(), seen(0.1, 5.9), True),
        (state(), seen(0.1, 6.1), False),
        (state(), seen(60, 60), False),
        (state(), seen(0.1, None), False),
        (state(), seen(0.1, 0.9, fault="it is lost"), True),
        (state(suspects=suspect(NOW + 5)), seen(0.1, 600), True),
        (state(suspects=suspect(NOW + 5)), seen(600, 600), False),
        (state(suspects=suspect(NOW - 1)), seen(0.1, 600), False),
        (settling(), seen(0.1, 600), True),
        (state(probe=Probe(due=NOW + 30, reason="x")), seen(90, 90), True),
        (state(probe=replace(UP, since=NOW - 50, works=False)), seen(90, 90), True),
        (state(probe=replace(UP, since=NOW - 5)), seen(90, 90), True),
        (state(probe=replace(UP, since=NOW - 7)), seen(90, 90), False),
        (state(probe=replace(UP, unused_at=NOW - 1)), seen(90, 90), True),
        (state(stalled_at=NOW - 1), seen(90, 90), True),
    ],
)
def test_the_watchdog_is_sent_only_while_readings_are_recent(
    *, of: State, what: Observation, fresh: bool
) -> None:
    notification = notification_of(of, what)
    assert ("WATCHDOG=1" in notification.lines) == fresh
    assert notification.sent.watchdog_at == (NOW if fresh else SENT.watchdog_at)


@pytest.mark.parametrize(
    ("watchdog", "ago", "sent"),
    [
        (30.0, 0.0, False),
        (30.0, 7.0, False),
        (30.0, 7.5, True),
        (2.0, 0.4, False),
        (2.0, 0.5, True),
        (None, 100.0, False),
    ],
)
def test_the_watchdog_is_sent_long_before_half_of_its_time(
    *, watchdog: float | None, ago: float, sent: bool
) -> None:
    notification = notification_of(
        state(), seen(0, 0), replace(SENT, watchdog_at=NOW - ago), watchdog
    )
    assert ("WATCHDOG=1" in notification.lines) == sent
    if watchdog is None:
        assert notification.due == float("inf")
    else:
        assert NOW < notification.due <= NOW + watchdog / 4


def test_the_watchdog_is_sent_in_time_and_not_without_readings() -> None:
    world = World(gpus=2)
    sent, times = SentNotifications(), []
    for _ in range(1200):
        world.supervisor.turn()
        what = Observation(now=world.now, readings=world.supervisor._readings)
        step = next_notification(world.state, what, sent, 2.0)
        sent = step.sent
        if "WATCHDOG=1" in step.lines:
            times.append(world.now)
    assert world.now > 10
    gaps = [later - sooner for sooner, later in pairwise(times)]
    assert max(gaps) < 1.0


# --- status ----------------------------------------------------------------------------------


def test_the_status_counts_the_gpus_in_each_state() -> None:
    world = occupied(2)
    gpu_states = {**world.state.gpu_states, **state(3).gpu_states}
    third = replace(gpu_state(3), occupancy=Busy(rule="foreign", reason="x"))
    gpu_states |= {"GPU-2": replace(gpu_state(2), occupancy=Idle(since=1.0)), "GPU-3": third}
    gpu_states |= {"GPU-4": gpu_state(4), **world.state.gpu_states}
    notification = notification_of(state(gpu_states=gpu_states), seen(0, 0), SentNotifications())
    assert "STATUS=5 GPUs: 2 occupied, 1 idle, 1 busy, 1 unknown" in notification.lines
    assert isinstance(gpu_state(4).occupancy, Unknown)


def test_a_changed_status_is_sent_once_a_second_at_most() -> None:
    soon = replace(SENT, status="something else", status_at=NOW - 0.4)
    notification = notification_of(state(), seen(0, 0), soon, None)
    assert notification.lines == ()
    assert notification.due == pytest.approx(NOW + 0.6)
    later = notification_of(state(), seen(0, 0), replace(soon, status_at=NOW - 1), None)
    assert later.lines == ("STATUS=2 GPUs: 2 unknown",)
    assert notification_of(state(), seen(0, 0), later.sent, None).lines == ()


def test_a_shutdown_is_sent_once_with_its_time_limit() -> None:
    ending = Shutdown(reason="SIGTERM", kill_at=NOW + 5, give_up_at=NOW + 15)
    notification = notification_of(state(shutdown=ending), seen(0, 0), SENT, None)
    assert notification.lines[:2] == ("STOPPING=1", "EXTEND_TIMEOUT_USEC=25000000")
    assert notification.lines[2:] == ("STATUS=stopping: SIGTERM",)
    assert notification_of(state(shutdown=ending), seen(0, 0), notification.sent, None).lines == ()
