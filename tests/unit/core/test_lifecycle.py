"""Failures of a stressor: which exits count, and what follows."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sentinel.config.model import Config
from sentinel.core.gpu_state import Backoff, Fatal, Running
from sentinel.errors import ExitCode
from sentinel.protocol.stressor import Failed, FailureKind
from tests.harness.core_scenarios import occupied, started, times
from tests.harness.world import GIB, World


def fail(
    world: World,
    *,
    gpu: int = 0,
    kind: FailureKind = FailureKind.WORKLOAD,
    reason: str = "boom",
) -> None:
    """End the child of a GPU with a failure."""
    child = world.child(gpu)
    child.outbox.append(Failed(kind=kind, reason=reason))
    child.dies_at, child.code = world.now, 82


def test_a_failure_is_followed_by_a_growing_pause() -> None:
    world = World()
    for count in range(1, 6):
        world.run(started(world, count))
        fail(world)
        world.run(times(world, "stressor.failed", count))
        assert isinstance(world.gpu_state().stressor, Backoff)
    assert [e.fields["pause_s"] for e in world.events("stressor.failed")] == [1, 2, 4, 8, 16]
    starts = [at for _, at in world.spawner.started]
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert all(gap >= pause for gap, pause in zip(gaps, [1, 2, 4, 8], strict=True))


def test_a_minute_of_running_resets_the_pause_but_not_the_count() -> None:
    world = occupied()
    for count in range(1, 4):
        world.run_for(64)
        fail(world)
        world.run(times(world, "stressor.failed", count))
    assert [e.fields["pause_s"] for e in world.events("stressor.failed")] == [1, 1, 1]
    assert world.events("stressor.failed")[-1].fields["failures"] == 3


@pytest.mark.parametrize(
    ("runs_s", "pauses_s"),
    [((1, 1, 1, 1, 1), (1, 2, 4, 8, 16)), ((64, 64), (1, 1)), ((1, 1, 64, 1), (1, 2, 1, 2))],
)
def test_a_gpu_that_becomes_unknown_again_is_left_alone_for_longer(
    runs_s: tuple[float, ...], pauses_s: tuple[float, ...]
) -> None:
    world = occupied()
    for count, (run_s, pause_s) in enumerate(zip(runs_s, pauses_s, strict=True), 1):
        world.run(lambda: isinstance(world.gpu_state().stressor, Running), within=60)
        world.run_for(run_s)
        world.at(0).fault = "the host is too slow"
        world.run(times(world, "stressor.stopped", count))
        world.at(0).fault = None
        pause = world.gpu_state().stressor
        assert isinstance(pause, Backoff)
        assert pause.reason == "the GPU could not be read"
        stopped_at = world.events("stressor.stopped")[-1].at
        assert pause.until - stopped_at == pytest.approx(pause_s)
        world.run(started(world, count + 1), within=60)
        assert world.spawner.started[-1][1] >= pause.until
    assert not world.events("stressor.failed")


@pytest.mark.long
def test_ten_failures_within_an_hour_are_fatal_until_reset() -> None:
    world = World(tick=0.5)
    for count in range(1, 11):
        world.run(started(world, count), within=400)
        fail(world, reason="no luck")
        world.run_for(1)
    given_up = world.gpu_state().stressor
    assert isinstance(given_up, Fatal)
    assert "10 failures" in given_up.reason
    assert "no luck" in given_up.reason
    world.tick = 4.0
    world.run_for(2000)
    assert len(world.spawner.started) == 10


def test_a_permanent_failure_is_fatal_and_on_all_gpus_it_ends_the_daemon() -> None:
    world = World(gpus=2)
    world.run(started(world, 2))
    fail(world, kind=FailureKind.UNUSABLE, reason="torch without CUDA")
    world.run(times(world, "stressor.fatal", 1))
    assert world.gpu_state().stressor == Fatal(reason="torch without CUDA", unusable=True)
    assert "restart" in str(world.events("stressor.fatal")[0].fields["until"])
    world.run_for(60)
    assert world.state.shutdown is None, "the other GPU may still work"
    fail(world, gpu=1, kind=FailureKind.MALFORMED, reason="no workload")
    world.run(lambda: world.state.finished)
    assert "no workload" in str(world.events("sentinel.stopping")[0].fields["reason"])
    assert world.supervisor.run() is ExitCode.USAGE


def test_running_out_of_memory_beside_a_newcomer_is_no_failure() -> None:
    world = World()
    world.run(lambda: world.spawner.started)
    world.run_for(2.1)
    world.at(0).unlisted = 120 * GIB
    fail(world, kind=FailureKind.OUT_OF_MEMORY, reason="no memory")
    world.run(lambda: world.events("stressor.stopped"), within=6)
    assert not world.events("stressor.failed")


def test_running_out_of_memory_alone_is_a_failure() -> None:
    world = World()
    world.run(lambda: world.spawner.started)
    fail(world, kind=FailureKind.OUT_OF_MEMORY, reason="no memory")
    world.run(lambda: world.events("stressor.failed"), within=6)


@pytest.mark.parametrize(
    ("code", "words"),
    [(-9, "signal 9"), (-11, "signal 11"), (1, "code 1"), (0, "code 0"), (-14, "stuck")],
)
def test_an_unrequested_exit_is_a_failure(code: int, words: str) -> None:
    world = occupied()
    child = world.child()
    child.dies_at, child.code = world.now, code
    world.run(lambda: world.events("stressor.failed"), within=6)
    assert words in str(world.events("stressor.failed")[0].fields["reason"])


def test_a_lease_that_ran_out_is_no_failure() -> None:
    world = occupied()
    child = world.child()
    child.dies_at, child.code = world.now, 80
    world.run(lambda: len(world.events("stressor.ready")) == 2)
    assert not world.events("stressor.failed")


def test_a_kernel_timer_that_ends_children_during_a_stall_is_no_failure() -> None:
    world = occupied()
    child = world.child()
    world.pass_time(20)
    child.dies_at, child.code = world.now, -14
    world.run(lambda: len(world.events("stressor.ready")) == 2)
    assert not world.events("stressor.failed")
    assert world.events("sentinel.stalled")


def test_a_child_that_is_never_ready_is_killed_and_counted() -> None:
    world = World(config=Config(start_timeout=20))
    world.run(lambda: world.spawner.started)
    assert world.at(0).child is not None
    world.child().unresponsive = True
    world.run(lambda: world.events("stressor.failed"), within=22)
    assert world.now - world.spawner.started[0][1] >= 20


def test_a_child_without_progress_is_killed_and_counted() -> None:
    world = occupied(config=Config(hang_after=30))
    world.child().unresponsive = True
    world.run(lambda: world.events("stressor.failed"), within=32)
    assert "no progress for 30 s" in str(world.events("stressor.failed")[0].fields["reason"])
