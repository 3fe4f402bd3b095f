"""The spare probe and the standby stressor are ready when another process ends or must start."""

from __future__ import annotations

import pytest

from sentinel.config.model import Config
from sentinel.core.gpu_state import Starting
from sentinel.core.node.serving_processes import (
    INITIALISATION_TIMEOUT_S,
    SPARE_PAUSE_S,
    STANDBY_TIMEOUT_S,
    STANDBY_WAIT_S,
)
from sentinel.protocol.commands import PauseGpus
from tests.harness.core_scenarios import held, occupied, times
from tests.harness.world import World

# --- the spare probe -------------------------------------------------------------------------


def test_a_spare_probe_replaces_one_that_ends_without_any_pause() -> None:
    world = occupied()
    for number in range(2, 6):
        world.run(lambda: world.spare_probe.running, within=SPARE_PAUSE_S + 1)
        world.probe.exits_with = 1
        world.run(times(world, "probe.ready", number), within=0.1)
        assert world.events("probe.exited")[-1].fields["pause_s"] == 0.0
        assert not world.spare_probe.running
    assert len(world.spawner.started) == 1


def test_the_next_spare_probe_is_not_started_at_once() -> None:
    world = occupied()
    world.run(lambda: world.spare_probe.running, within=SPARE_PAUSE_S + 1)
    world.spare_probe.running = False
    ended = world.now
    world.run(lambda: world.spare_probe.running, within=SPARE_PAUSE_S + 1)
    assert world.now - ended >= SPARE_PAUSE_S


def test_there_is_no_spare_probe_where_nothing_is_ever_held() -> None:
    world = World(config=Config(dry_run=True))
    world.run_for(3 * SPARE_PAUSE_S)
    assert not world.spare_probe.running


def test_a_released_driver_is_used_by_no_spare_probe() -> None:
    world = World(with_api=True)
    world.run(lambda: world.spare_probe.running, within=30)
    world.api.post(PauseGpus, release=True)
    world.run(lambda: world.events("driver.released"), within=30)
    assert not world.spare_probe.running
    world.run_for(2 * SPARE_PAUSE_S)
    assert not world.spare_probe.running


def test_a_spare_probe_that_hangs_in_the_driver_is_replaced() -> None:
    world = occupied()
    world.spare_probe.ready = False
    world.run(lambda: world.spare_probe.running, within=SPARE_PAUSE_S + 1)
    world.run(lambda: not world.spare_probe.running, within=INITIALISATION_TIMEOUT_S + 1)
    world.run(lambda: world.spare_probe.running, within=SPARE_PAUSE_S + 1)


# --- the standby stressor --------------------------------------------------------------------


def prepared(gpus: int = 1) -> World:
    """Build a world with a stressor on every GPU and a standby one."""
    world = occupied(gpus)
    world.run(lambda: world.standby.running, within=1.0)
    return world


def loading(gpus: int = 1, config: Config | None = None) -> World:
    """Build a world whose standby stressor loads, until a test says that it is ready."""
    world = World(gpus=gpus, config=config or Config())
    world.standby.ready = False
    world.run(lambda: world.standby.running, within=1.0)
    return world


def hand_over(world: World, index: int = 0) -> None:
    """Let a newcomer come and go, until the next start on that GPU."""
    count = len(world.events("stressor.starting")) + 1
    job = world.newcomer(index)
    world.run(times(world, "gpu.handed_over", 1))
    world.gpus[f"GPU-{index}"].foreign.remove(job)
    world.run(times(world, "stressor.starting", count))


def test_the_standby_stressor_becomes_the_next_one_and_is_replaced_at_once() -> None:
    world = prepared()
    assert world.events("stressor.starting")[0].fields["standby"], "the first one, too"
    hand_over(world)
    assert world.events("stressor.starting")[-1].fields["standby"]
    assert world.standby.activated == 2
    world.run(lambda: world.standby.running, within=0.1)
    assert isinstance(world.gpu_state().stressor, Starting)


def test_one_of_two_stressors_comes_from_the_standby_one() -> None:
    world = prepared(gpus=2)
    for uuid in world.gpus:
        child = world.child(int(uuid[-1]))
        child.dies_at, child.code = world.now, 1
    world.run(times(world, "stressor.starting", 4), within=30)
    used = [bool(event.fields["standby"]) for event in world.events("stressor.starting")]
    assert [sorted(used[:2]), sorted(used[2:])] == [[False, True], [False, True]]


def test_none_is_loaded_beside_a_stressor_that_loads_itself() -> None:
    world = World()
    world.standby.host_has_memory = False
    world.run(lambda: isinstance(world.gpu_state().stressor, Starting))
    world.standby.host_has_memory = True
    while getattr(world.gpu_state().stressor, "attaching", 0.0) is None:
        assert not world.standby.running
        world.supervisor.turn()
    world.run(lambda: world.standby.running, within=0.1)


def test_a_start_waits_for_the_one_that_loads() -> None:
    world = loading()
    world.run_for(STANDBY_WAIT_S - 1)
    assert not world.spawner.started
    world.standby.ready = True
    world.run(times(world, "stressor.starting", 1), within=0.5)
    assert world.events("stressor.starting")[0].fields["standby"]


def test_a_start_does_not_wait_for_long() -> None:
    world = loading()
    world.run(times(world, "stressor.starting", 1), within=STANDBY_WAIT_S + 0.5)
    assert not world.events("stressor.starting")[0].fields["standby"]
    assert world.standby.running


@pytest.mark.parametrize(
    ("config", "first"),
    [(Config(), [0, 1]), (Config(max_gpus=1), []), (Config(leave_idle=2), [])],
)
def test_only_the_last_gpu_waits(config: Config, first: list[int]) -> None:
    world = loading(3, config)
    world.run_for(STANDBY_WAIT_S - 1)
    assert held(world) == first
    world.standby.ready = True
    world.run(lambda: held(world) == ([0, 1, 2] if first else [0]), within=30)
    assert world.events("stressor.starting")[-1].fields["standby"]


def test_one_that_is_never_ready_is_replaced() -> None:
    world = loading()
    world.run(times(world, "standby.failed", 1), within=STANDBY_TIMEOUT_S + 1)
    assert world.events("standby.failed")[0].fields["exit_code"] is None
    world.run(lambda: world.standby.started == 2, within=SPARE_PAUSE_S + 1)


@pytest.mark.parametrize("config", [Config(standby="off"), Config(dry_run=True)])
def test_there_is_none_where_it_is_not_wanted(config: Config) -> None:
    world = World(config=config)
    world.run_for(3 * SPARE_PAUSE_S)
    assert world.standby.started == 0


def test_one_that_fails_is_tried_again_after_growing_pauses() -> None:
    world = occupied()
    world.standby.fails = "torch cannot be imported"
    world.run(times(world, "standby.failed", 4), within=60)
    pauses = [event.fields["pause_s"] for event in world.events("standby.failed")]
    assert pauses == pytest.approx([SPARE_PAUSE_S + more for more in (0, 1, 2, 4)])
    assert world.events("standby.failed")[0].fields["reason"] == "torch cannot be imported"
    hand_over(world)
    assert not world.events("stressor.starting")[-1].fields["standby"]


def test_it_is_given_up_while_the_host_is_short_of_memory() -> None:
    world = prepared()
    world.standby.host_has_memory = False
    world.run(lambda: not world.standby.running, within=3)
    world.run_for(2 * SPARE_PAUSE_S)
    assert not world.standby.running
    world.standby.host_has_memory = True
    world.run(lambda: world.standby.running, within=SPARE_PAUSE_S + 1)
    assert not world.events("standby.failed")


def test_it_ends_with_a_shutdown() -> None:
    world = prepared()
    world.interrupts.pending = ("SIGTERM", False)
    world.run(lambda: world.state.finished)
    assert not world.standby.running
