"""What systemd is told, and when its watchdog is sent: values in, values out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from sentinel.config.model import Config
from sentinel.core.gpu_state import Busy, GpuState, Idle, Unknown
from sentinel.core.node.watchdog import Notification, SentNotifications, next_notification
from sentinel.core.observation import Observation
from sentinel.core.state import ProbeDown, ProbeState, ProbeUp, Shutdown, State, Suspect
from sentinel.core.stressor_state import StopCause, Stopping
from sentinel.protocol.gpu import Gpu, Reading
from sentinel.testing import World
from tests.harness.core_scenarios import occupied

NOW = 1000.0
WATCHDOG = 30.0
UP = ProbeUp(generation=1, since=NOW - 100, ready=True)
SAID = SentNotifications(
    ready=True, status="2 GPUs: 2 unknown", status_at=NOW - 50, watchdog_at=NOW - 20
)


def gpu_state(index: int) -> GpuState:
    gpu = Gpu(uuid=f"GPU-{index}", index=index, name="Fake", pci_bus_id="0", memory_total=1)
    return GpuState(gpu=gpu)


def state(gpus: int = 2, probe: ProbeState = UP, **more: Any) -> State:
    gpu_states = {f"GPU-{index}": gpu_state(index) for index in range(gpus)}
    return replace(State(gpu_states=gpu_states, started=0.0, probe=probe), **more)


def seen(*ages: float | None, fault: str | None = None) -> Observation:
    """Return an observation whose readings of the GPUs are so old, in seconds."""
    readings = {
        f"GPU-{index}": Reading(uuid=f"GPU-{index}", at=NOW - age, fault=fault)
        for index, age in enumerate(ages)
        if age is not None
    }
    return Observation(now=NOW, readings=readings)


def told(
    of: State, what: Observation, sent: SentNotifications = SAID, watchdog: float | None = WATCHDOG
) -> Notification:
    return next_notification(of, what, Config(), sent, watchdog)


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
    ],
)
def test_ready_is_said_once_every_gpu_was_read_or_is_known_not_to_be_readable(
    *, what: Observation, more: dict[str, Any], ready: bool
) -> None:
    first = told(state(**more), what, SentNotifications())
    assert ("READY=1" in first.lines) == ready
    assert first.sent.ready == ready
    assert "READY=1" not in told(state(**more), what, first.sent).lines or not ready


def test_what_could_not_be_sent_is_said_again() -> None:
    assert "READY=1" in told(state(), seen(0, 0), SentNotifications()).lines
    assert "READY=1" in told(state(), seen(0, 0), SentNotifications()).lines


# --- the watchdog ----------------------------------------------------------------------------


def settling() -> State:
    """Return a state in which the second GPU's stressor was killed and has not ended."""
    gpu_states = dict(state().gpu_states)
    stuck = Stopping(
        generation=1,
        since=NOW - 60,
        cause=StopCause.YIELD,
        baseline=0,
        unattributed=0,
        child=None,
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
        (state(probe=ProbeDown(generation=2, until=NOW + 30, reason="x")), seen(90, 90), True),
        (state(probe=ProbeUp(generation=2, since=NOW - 50)), seen(90, 90), True),
        (state(probe=ProbeUp(generation=2, since=NOW - 5, ready=True)), seen(90, 90), True),
        (state(probe=ProbeUp(generation=2, since=NOW - 7, ready=True)), seen(90, 90), False),
        (state(probe=replace(UP, unused_at=NOW - 1)), seen(90, 90), True),
        (state(stalled_at=NOW - 1), seen(90, 90), True),
    ],
)
def test_the_watchdog_is_fed_only_while_what_is_decided_on_is_fresh(
    *, of: State, what: Observation, fresh: bool
) -> None:
    notification = told(of, what)
    assert ("WATCHDOG=1" in notification.lines) == fresh
    assert notification.sent.watchdog_at == (NOW if fresh else SAID.watchdog_at)


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
def test_the_watchdog_is_fed_long_before_half_of_its_time(
    *, watchdog: float | None, ago: float, sent: bool
) -> None:
    notification = told(state(), seen(0, 0), replace(SAID, watchdog_at=NOW - ago), watchdog)
    assert ("WATCHDOG=1" in notification.lines) == sent
    if watchdog is None:
        assert notification.due == float("inf")
    else:
        assert NOW < notification.due <= NOW + watchdog / 4


def test_a_whole_life_is_fed_in_time_and_a_deaf_one_is_not() -> None:
    world = World(gpus=2)
    supervisor = world.supervisor(Config())
    sent, times = SentNotifications(), []
    for _ in range(2400):
        supervisor.turn()
        what = Observation(now=world.now, readings=supervisor._readings)
        step = next_notification(supervisor.state, what, Config(), sent, 2.0)
        sent = step.sent
        if "WATCHDOG=1" in step.lines:
            times.append(world.now)
    assert world.now > 10
    gaps = [later - sooner for sooner, later in pairwise(times)]
    assert max(gaps) < 1.0


# --- words -----------------------------------------------------------------------------------


def test_the_words_say_how_many_gpus_are_at_what() -> None:
    _, supervisor = occupied(2)
    gpu_states = {**supervisor.state.gpu_states, **state(3).gpu_states}
    third = replace(gpu_state(3), occupancy=Busy(rule="foreign", reason="x"))
    gpu_states |= {"GPU-2": replace(gpu_state(2), occupancy=Idle(since=1.0)), "GPU-3": third}
    gpu_states |= {"GPU-4": gpu_state(4), **supervisor.state.gpu_states}
    notification = told(state(gpu_states=gpu_states), seen(0, 0), SentNotifications())
    assert "STATUS=5 GPUs: 2 occupied, 1 idle, 1 busy, 1 unknown" in notification.lines
    assert isinstance(gpu_state(4).occupancy, Unknown)


def test_words_that_changed_are_said_once_a_second_at_most() -> None:
    soon = replace(SAID, status="something else", status_at=NOW - 0.4)
    notification = told(state(), seen(0, 0), soon, None)
    assert notification.lines == ()
    assert notification.due == pytest.approx(NOW + 0.6)
    later = told(state(), seen(0, 0), replace(soon, status_at=NOW - 1), None)
    assert later.lines == ("STATUS=2 GPUs: 2 unknown",)
    assert told(state(), seen(0, 0), later.sent, None).lines == ()


def test_the_end_is_said_once_with_how_long_it_may_take() -> None:
    ending = Shutdown(reason="SIGTERM", kill_at=NOW + 5, give_up_at=NOW + 15)
    notification = told(state(shutdown=ending), seen(0, 0), SAID, None)
    assert notification.lines[:2] == ("STOPPING=1", "EXTEND_TIMEOUT_USEC=25000000")
    assert notification.lines[2:] == ("STATUS=stopping: SIGTERM",)
    assert told(state(shutdown=ending), seen(0, 0), notification.sent, None).lines == ()
