"""Newcomers: the evidence, the kill, the hand-over and the re-arm time."""

from __future__ import annotations

import pytest

from sentinel.config.model import Config
from sentinel.core.gpu_state import Running, Stopped
from sentinel.core.step import Kill
from sentinel.protocol.gpu import GpuProcess, ProcessKind
from sentinel.supervisor.bootstrap import HostClock
from tests.harness.core_scenarios import occupied, on_stressors, times
from tests.harness.world import GIB, World

MIB = 2**20

ASK = Config(yield_how="ask", yield_grace=3.0)


# --- evidence --------------------------------------------------------------------------------


def test_a_foreign_process_causes_a_kill_in_the_same_tick() -> None:
    world = occupied()
    world.newcomer(0, memory=0)
    decision = world.supervisor.tick()
    assert on_stressors(decision) == (Kill(uuid="GPU-0", generation=1),)


def test_unexplained_growth_causes_a_kill_in_the_same_tick() -> None:
    world = occupied()
    world.at(0).unlisted = MIB + 1
    decision = world.supervisor.tick()
    assert on_stressors(decision) == (Kill(uuid="GPU-0", generation=1),)
    assert world.events("gpu.yielding")[0].fields["evidence"] == "memory"


def test_a_list_too_long_to_read_is_a_newcomer() -> None:
    world = occupied()
    world.at(0).omitted_processes = 1_000_000
    assert on_stressors(world.supervisor.tick()) == (Kill(uuid="GPU-0", generation=1),)
    (busy,) = world.events("gpu.busy")
    assert busy.fields["reason"] == "used by foreign processes, 1000000 of them not listed"


def test_growth_within_the_slack_is_no_newcomer() -> None:
    world = occupied()
    world.at(0).unlisted = MIB
    world.run_for(5)
    assert isinstance(world.gpu_state().stressor, Running)


@pytest.mark.parametrize("age", [0.1, 1.9, 2.05, 2.3, 2.6, 10.0])
def test_a_newcomer_is_yielded_to_at_every_age_of_the_child(age: float) -> None:
    world = World()
    world.run(lambda: world.spawner.started)
    world.run_for(age)
    world.newcomer(0)
    decision = world.supervisor.tick()
    assert on_stressors(decision) == (Kill(uuid="GPU-0", generation=1),)


def test_growth_while_the_child_imports_is_a_newcomer() -> None:
    world = World()
    world.run(lambda: world.spawner.started)
    world.at(0).unlisted = 13 * MIB
    assert on_stressors(world.supervisor.tick()) == (Kill(uuid="GPU-0", generation=1),)


def test_light_graphics_shares_a_gpu_and_heavy_graphics_does_not() -> None:
    world = occupied()
    xorg = GpuProcess(pid=7, kind=ProcessKind.GRAPHICS, memory=4 * MIB, started=7)
    world.at(0).foreign.append(xorg)
    world.at(0).unlisted = -4 * MIB  # the memory does not change
    world.run_for(2)
    assert isinstance(world.gpu_state().stressor, Running)
    game = GpuProcess(pid=8, kind=ProcessKind.GRAPHICS, memory=200 * MIB, started=8)
    world.at(0).foreign.append(game)
    world.at(0).unlisted = -204 * MIB
    assert on_stressors(world.supervisor.tick()) == (Kill(uuid="GPU-0", generation=1),)


def test_memory_freed_by_a_foreign_process_lowers_the_expected_memory() -> None:
    world = World()
    xorg = GpuProcess(pid=7, kind=ProcessKind.GRAPHICS, memory=50 * MIB, started=7)
    world.at(0).foreign.append(xorg)
    world.run(lambda: world.events("stressor.ready"))
    world.run_for(0.2)
    world.at(0).foreign.clear()
    world.run_for(0.2)
    world.at(0).unlisted = 2 * MIB
    assert on_stressors(world.supervisor.tick()) == (Kill(uuid="GPU-0", generation=1),)


# --- the hand-over ---------------------------------------------------------------------------


def test_a_hand_over_reports_its_times() -> None:
    world = occupied()
    world.newcomer(0)
    world.run(lambda: world.events("gpu.handed_over"))
    fields = world.events("gpu.handed_over")[0].fields
    assert fields["kill_s"] == pytest.approx(0.0)
    assert fields["exit_s"] == pytest.approx(0.2, abs=0.03)
    assert fields["memory_back_s"] == pytest.approx(0.2, abs=0.06)
    assert isinstance(world.gpu_state().stressor, Stopped)


def test_memory_back_is_unknown_where_a_newcomers_memory_cannot_be_read() -> None:
    world = occupied()
    hidden = world.newcomer(0, memory=0)
    world.at(0).foreign[:] = [GpuProcess(pid=hidden.pid, memory=None, started=hidden.started)]
    world.at(0).unlisted = 100 * GIB
    world.run(lambda: world.events("gpu.handed_over"))
    assert world.events("gpu.handed_over")[0].fields["memory_back_s"] is None


def test_a_stressor_may_be_requested_to_yield_and_is_killed_after_the_grace() -> None:
    for stubborn in (False, True):
        world = occupied(config=ASK)
        child = world.child()
        child.unresponsive = stubborn
        came = world.now
        world.newcomer(0)
        world.run(times(world, "gpu.handed_over", 1))
        assert [round(at - came, 1) for _, at in world.spawner.stop_requests] == [0.0]
        assert [round(at - came, 1) for _, at in world.spawner.killed] == [3.0] * stubborn
        (handed,) = world.events("gpu.handed_over")
        assert (handed.fields["kill_s"] is None) is not stubborn
        assert not world.events("stressor.failed")


def test_yield_how_can_differ_for_one_gpu() -> None:
    world = occupied(gpus=2, config=Config(each={"GPU-1": ASK}))
    world.newcomer(0)
    world.newcomer(1)
    world.run(times(world, "gpu.handed_over", 2))
    assert [uuid for uuid, _ in world.spawner.killed] == ["GPU-0"]
    assert [uuid for uuid, _ in world.spawner.stop_requests] == ["GPU-1"]


# --- the re-arm time -------------------------------------------------------------------------


def test_a_start_waits_for_the_rearm_time_after_a_newcomer() -> None:
    world = occupied(config=Config(rearm=10))
    world.newcomer(0)
    world.run(lambda: world.events("gpu.handed_over"))
    world.at(0).foreign.clear()
    gone = world.now
    world.run(lambda: len(world.spawner.started) == 2)
    assert 5.0 <= world.spawner.started[1][1] - gone <= 15.2


def test_the_rearm_time_restarts_with_every_newcomer() -> None:
    world = occupied(config=Config(rearm=4))
    for _ in range(5):
        world.newcomer(0)
        world.run_for(1.0)
        world.at(0).foreign.clear()
        world.run_for(1.5)
    assert len(world.spawner.started) == 1


def test_a_newcomer_shown_by_memory_alone_causes_a_rearm_time() -> None:
    world = occupied(config=Config(rearm=10))
    world.at(0).unlisted = 20 * MIB
    world.run(lambda: world.events("gpu.yielding"))
    world.at(0).unlisted = 0
    gone = world.now
    world.run(lambda: len(world.spawner.started) == 2)
    assert world.spawner.started[1][1] - gone >= 5.0


def test_rearm_times_are_random() -> None:
    pauses = set()
    clock = HostClock()
    for _ in range(5):
        world = occupied(config=Config(rearm=10))
        world.random_value = clock.random_value
        world.newcomer(0)
        world.run(times(world, "gpu.handed_over", 1))
        pauses.add(world.gpu_state().rearm)
    assert len(pauses) > 1
    assert all(5.0 <= pause <= 15.0 for pause in pauses)


def test_the_rearm_time_grows_with_frequent_newcomers() -> None:
    world = occupied(config=Config(rearm=2.0, rearm_longest=20.0))
    world.random_value = lambda: 0.5
    world.tick = 0.1
    alone: list[float] = []
    for _ in range(8):
        world.newcomer(0)
        world.run(times(world, "gpu.handed_over", len(alone) + 1))
        world.at(0).foreign.clear()
        alone.append(world.gpu_state().rearm)
        world.run(lambda: isinstance(world.gpu_state().stressor, Running), within=40)
    assert alone == [2, 2, 2, 4, 8, 16, 20, 20]
    world.pass_time(3600)
    world.run(lambda: isinstance(world.gpu_state().stressor, Running), within=40)
    world.newcomer(0)
    world.run(times(world, "gpu.handed_over", 9))
    assert world.gpu_state().rearm == 2, "newcomers count for an hour"
