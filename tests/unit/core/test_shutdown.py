"""Shutdown: children are requested to stop, then killed, and newcomers still cause a kill."""

from __future__ import annotations

import pytest

from sentinel.config.model import Config
from sentinel.core.gpu_state import Stopping
from sentinel.core.step import Kill
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
