"""A start that takes long, and a GPU that cannot be read, are reported with their reasons."""

from __future__ import annotations

import pytest

from sentinel.config.model import Config
from sentinel.core.gpu_state import Starting
from sentinel.core.node.status import gpu_views
from sentinel.core.observation import Observation
from sentinel.protocol.stressor import ChildMessage, CreatingContext, Preparing
from tests.harness.core_scenarios import started, times
from tests.harness.world import World

CONTEXT, TAKEN = CreatingContext(torch="2.13"), Preparing()


def stuck(*messages: ChildMessage, config: Config | None = None) -> World:
    """Build a world with a child that sends nothing after these messages."""
    world = World(config=config or Config())
    world.run(started(world, 1))
    child = world.child()
    child.unresponsive = True
    child.outbox += messages
    return world


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ((), "it imports torch and the module of the workload"),
        ((CONTEXT,), "it creates its context and takes memory"),
        ((CONTEXT, TAKEN), "it has not called ctx.pace() twice"),
    ],
)
def test_a_start_that_takes_long_says_what_it_waits_for(
    messages: tuple[ChildMessage, ...], reason: str
) -> None:
    world = stuck(*messages)
    world.run_for(9.5)
    assert not world.events("stressor.slow_start")
    world.run(times(world, "stressor.slow_start", 1), within=1.0)
    (event,) = world.events("stressor.slow_start")
    assert reason in str(event.fields["reason"])
    assert event.fields["since_s"] == pytest.approx(10.0, abs=0.2)
    assert event.fields["left_s"] == pytest.approx(170.0, abs=0.2)
    seen = Observation(now=world.now, readings=dict(world.supervisor._readings))
    (view,) = gpu_views(world.state, seen)
    assert (view.stressor, view.rule) == ("STARTING", "starting")
    assert reason in view.reason
    world.run_for(30.0)
    assert len(world.events("stressor.slow_start")) == 1, "it is reported once"


def test_the_failure_of_such_a_start_names_the_same_reason() -> None:
    world = stuck(CONTEXT, TAKEN, config=Config(start_timeout=20.0))
    world.run(times(world, "stressor.failed", 1))
    reason = str(world.events("stressor.failed")[0].fields["reason"])
    assert reason.startswith("not ready within 20 s: the workload prepares")
    assert "ctx.pace() twice" in reason


def test_a_short_timeout_is_no_slow_start() -> None:
    world = stuck(config=Config(start_timeout=5.0))
    world.run(times(world, "stressor.failed", 1))
    assert not world.events("stressor.slow_start")


def test_a_start_in_time_is_not_reported() -> None:
    world = World()
    world.run(times(world, "stressor.ready", 1))
    world.run_for(20.0)
    assert not world.events("stressor.slow_start")
    assert not isinstance(world.gpu_state().stressor, Starting)


def test_a_gpu_that_cannot_be_read_from_the_start_is_reported_at_once() -> None:
    world = World(gpus=2)
    world.at(0).fault = "the driver failed (unknown)"
    world.run(times(world, "gpu.unknown", 1), within=1.0)
    world.run_for(30.0)
    (event,) = world.events("gpu.unknown")
    assert (event.gpu, event.fields["reason"]) == ("GPU-0", "the driver failed (unknown)")
