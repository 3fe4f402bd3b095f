"""Slow starts and failures of a stressor: what is reported, which exits count, what follows."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sentinel.config.model import Config
from sentinel.core.gpu_state import Backoff, Fatal, Running, Starting, Stopping
from sentinel.core.node.status import gpu_views
from sentinel.core.observation import Observation
from sentinel.errors import ExitCode
from sentinel.protocol.stressor import (
    Announcement,
    ChildMessage,
    CreatingContext,
    FailureKind,
    StartStage,
)
from sentinel.protocol.views import GpuView
from tests.harness.core_scenarios import occupied, reconfigured, started, times
from tests.harness.parameters import mostly_long
from tests.harness.world import GIB, World


def test_a_failure_is_followed_by_a_growing_pause() -> None:
    world = World()
    for count in range(1, 6):
        world.run(started(world, count))
        world.fail()
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
        world.fail()
        world.run(times(world, "stressor.failed", count))
    assert [e.fields["pause_s"] for e in world.events("stressor.failed")] == [1, 1, 1]
    assert world.events("stressor.failed")[-1].fields["failures"] == 3


@mostly_long(
    "runs_s, pauses_s",
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
        world.fail(reason="no luck")
        world.run_for(1)
    given_up = world.gpu_state().stressor
    assert isinstance(given_up, Fatal)
    assert "10 failures" in given_up.reason
    assert "no luck" in given_up.reason
    world.tick = 4.0
    world.run_for(2000)
    assert len(world.spawner.started) == 10


@pytest.mark.long
def test_a_host_that_refuses_a_process_for_an_hour_makes_no_gpu_fatal() -> None:
    world = World(tick=0.5)
    for count in range(1, 21):
        world.run(started(world, count), within=400)
        world.fail(kind=FailureKind.SPAWN, reason="see `ulimit -u`")
        world.run_for(1)
        assert isinstance(world.gpu_state().stressor, Backoff)
    (*_, last) = world.events("stressor.failed")
    assert (last.fields["pause_s"], last.fields["failures"]) == (300, 0)
    world.run(lambda: isinstance(world.gpu_state().stressor, Running), within=400)


def test_a_permanent_failure_is_fatal_and_on_all_gpus_it_ends_the_daemon() -> None:
    world = World(gpus=2)
    world.run(started(world, 2))
    world.fail(kind=FailureKind.UNUSABLE, reason="torch without CUDA")
    world.run(times(world, "stressor.fatal", 1))
    assert world.gpu_state().stressor == Fatal(reason="torch without CUDA", unusable=True)
    assert "restart" in str(world.events("stressor.fatal")[0].fields["until"])
    world.run_for(60)
    assert world.state.shutdown is None, "the other GPU may still work"
    world.fail(1, kind=FailureKind.MALFORMED, reason="no workload")
    world.run(lambda: world.state.finished)
    assert "no workload" in str(world.events("sentinel.stopping")[0].fields["reason"])
    assert world.supervisor.run() is ExitCode.USAGE


@pytest.mark.parametrize("beside", [False, True])
def test_running_out_of_memory_is_a_failure_only_without_a_newcomer(*, beside: bool) -> None:
    world = World()
    world.run(lambda: world.spawner.started)
    world.run_for(2.1)
    world.at(0).unlisted = 120 * GIB if beside else 0
    world.fail(kind=FailureKind.OUT_OF_MEMORY, reason="no memory")
    world.run(lambda: {"stressor.stopped", "stressor.failed"} & {*world.names()}, within=6)
    assert ("stressor.failed" in world.names()) is not beside


@pytest.mark.parametrize(
    ("code", "words"),
    [(-9, "SIGKILL"), (-11, "SIGSEGV"), (1, "code 1"), (0, "code 0"), (-14, "stuck")],
)
def test_an_unrequested_exit_is_a_failure(code: int, words: str) -> None:
    world = occupied()
    world.end_child(code=code)
    world.run(lambda: world.events("stressor.failed"), within=6)
    assert words in str(world.events("stressor.failed")[0].fields["reason"])


@pytest.mark.parametrize(("code", "stall_s"), [(80, 0.0), (-14, 20.0)])
def test_a_lease_that_ran_out_is_no_failure(code: int, stall_s: float) -> None:
    """By its thread, or by the kernel timer during a stall of the supervisor."""
    world = occupied()
    world.pass_time(stall_s)
    world.end_child(code=code)
    world.run(lambda: len(world.events("stressor.ready")) == 2)
    assert not world.events("stressor.failed")
    assert bool(world.events("sentinel.stalled")) is bool(stall_s)


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


CONTEXT = CreatingContext(torch="2.13")
REHEARSING, TAKING, TAKEN = (Announcement(stage=stage) for stage in StartStage)


def stuck(*messages: ChildMessage, config: Config | None = None) -> World:
    """Build a world with a child that sends nothing after these messages."""
    world = World(config=config or Config())
    world.run(started(world, 1))
    child = world.child()
    child.unresponsive = True
    child.outbox += messages
    return world


def view_of(world: World) -> GpuView:
    (view,) = gpu_views(
        world.state, Observation(now=world.now, readings=dict(world.supervisor._readings))
    )
    return view


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ((), "importing torch and the workload"),
        ((CONTEXT,), "creating its context"),
        ((CONTEXT, REHEARSING), "rehearsing on a part of the memory"),
        ((CONTEXT, TAKING), "taking its memory"),
        ((CONTEXT, TAKEN), "preparing, and doing the first work"),
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
    view = view_of(world)
    assert (view.stressor, view.rule) == ("STARTING", "starting")
    assert reason in view.reason
    world.run_for(15.0)
    assert len(world.events("stressor.slow_start")) == 1, "it is reported once"


@pytest.mark.long
def test_a_workload_that_prepares_for_long_is_told_how_that_ends() -> None:
    world = stuck(CONTEXT, TAKING)
    world.run_for(12.0)
    prepares = world.now
    world.child().outbox.append(TAKEN)
    world.run_for(29.5)
    assert "pace" not in view_of(world).reason
    (first,) = world.events("stressor.slow_start")
    assert "pace" not in str(first.fields["reason"])
    world.run(times(world, "stressor.slow_start", 2), within=1.0)
    assert world.now - prepares == pytest.approx(30.0, abs=0.3)
    told = str(world.events("stressor.slow_start")[1].fields["reason"])
    assert "it has not called ctx.pace() twice" in told
    assert told in view_of(world).reason
    world.run_for(100.0)
    assert len(world.events("stressor.slow_start")) == 2, "it is told once"


@pytest.mark.long
@pytest.mark.parametrize("messages", [(), (CONTEXT,), (CONTEXT, REHEARSING), (CONTEXT, TAKING)])
def test_only_a_workload_that_prepares_is_told_of_its_pace(
    messages: tuple[ChildMessage, ...],
) -> None:
    world = stuck(*messages)
    world.run_for(170.0)
    assert len(world.events("stressor.slow_start")) == 1


def test_the_failure_of_such_a_start_names_the_same_reason() -> None:
    world = stuck(CONTEXT, TAKEN, config=Config(start_timeout=20.0))
    world.run(times(world, "stressor.failed", 1))
    reason = str(world.events("stressor.failed")[0].fields["reason"])
    assert reason.startswith("not ready within 20 s: preparing")
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


def test_a_gpu_that_is_called_lost_is_reported_although_it_was_unknown_before() -> None:
    """Once for each time, however short: a burn-in fails by it."""
    world = World()
    world.run(times(world, "stressor.ready", 1))
    fake = world.at(0)
    fake.fault = "a call took 6 s"
    world.run(times(world, "gpu.unknown", 1))
    fake.fault, fake.lost = "it fell off the bus", True
    world.run(times(world, "gpu.unknown", 2))
    world.run_for(30.0)
    fields = [event.fields for event in world.events("gpu.unknown")]
    assert [(one["reason"], one["lost"]) for one in fields] == [
        ("a call took 6 s", False),
        ("it fell off the bus", True),
    ]
    fake.fault, fake.lost = None, False
    world.run(times(world, "stressor.ready", 2))


@pytest.mark.parametrize(("how", "asked"), [("kill", []), ("ask", ["GPU-0"])])
def test_a_stop_kills_a_stressor_that_still_starts(how: str, asked: list[str]) -> None:
    """But for a GPU that a SIGKILL may leave unusable."""
    world = World(config=Config(yield_how=how))
    world.run(lambda: isinstance(world.gpu_state().stressor, Starting))
    world.interrupts.pending = ("SIGTERM", False)
    world.run(lambda: world.spawner.killed or world.spawner.stop_requests, within=1.0)
    assert [uuid for uuid, _ in world.spawner.stop_requests] == asked


@pytest.mark.parametrize(("workload", "fatal"), [("gemm", True), ("hold", False)])
def test_a_failure_of_a_former_workload_is_not_that_of_the_next(
    workload: str, *, fatal: bool
) -> None:
    world = occupied()
    world.fail(kind=FailureKind.UNUSABLE, after=0.5)
    world.run_for(0.2)
    assert isinstance(world.gpu_state().stressor, Stopping)
    world.state = reconfigured(world, workload=workload)
    world.run_for(1.5)
    assert isinstance(world.gpu_state().stressor, Fatal) is fatal
