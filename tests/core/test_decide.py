"""The decisions of a supervisor, in a world without processes: one scene per promise."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from sentinel.config import Config
from sentinel.core.actions import Kill, Start
from sentinel.core.model import (
    Backoff,
    Busy,
    Fatal,
    Idle,
    Running,
    Starting,
    Stopped,
    Stopping,
    Unknown,
)
from sentinel.core.observation import Call
from sentinel.errors import ExitCode
from sentinel.messages import Failed, FailureKind, GpuProcess, ProcessKind, Reading
from sentinel.supervisor import Supervisor
from sentinel.testing import GIB, World
from sentinel.wiring import HostClock

MIB = 2**20


def occupied(gpus: int = 1, config: Config | None = None) -> tuple[World, Supervisor]:
    """Return a world in which a stressor runs on every GPU."""
    world = World(gpus=gpus)
    supervisor = world.supervisor(config or Config())
    world.run(supervisor, lambda: len(world.events("stressor.ready")) == gpus)
    world.run_for(supervisor, 0.2)
    return world, supervisor


def times(world: World, name: str, count: int) -> Callable[[], bool]:
    """Return whether something was published so often, as a condition to run until."""
    return lambda: len(world.events(name)) >= count


def started(world: World, count: int) -> Callable[[], bool]:
    """Return whether so many children were started, as a condition to run until."""
    return lambda: len(world.spawner.started) >= count


def watched(world: World) -> list[str]:
    """Return the GPUs that the probe was told to read."""
    assert world.probe.watched is not None
    return list(world.probe.watched.gpus)


def stressor(supervisor: Supervisor, index: int = 0) -> object:
    return supervisor.state.slots[f"GPU-{index}"].stressor


def test_an_idle_gpu_is_occupied() -> None:
    _, supervisor = occupied()
    assert isinstance(stressor(supervisor), Running)


def test_at_most_one_start_a_tick_and_it_comes_last() -> None:
    world = World(gpus=4)
    decisions = world.run_for(world.supervisor(Config()), 2)
    starts = [[a for a in d.actions if isinstance(a, Start)] for d in decisions]
    assert max(map(len, starts)) == 1
    assert sum(map(len, starts)) == 4
    assert all(
        isinstance(d.actions[-1], Start) for d, s in zip(decisions, starts, strict=True) if s
    )


def test_a_busy_gpu_is_never_started_on() -> None:
    world = World(gpus=2)
    world.newcomer(0)
    supervisor = world.supervisor(Config())
    world.run(supervisor, lambda: world.events("stressor.ready"))
    assert [uuid for uuid, _ in world.spawner.started] == ["GPU-1"]


@pytest.mark.parametrize("fault", ["Unknown Error", "GPU is lost"])
def test_a_gpu_that_cannot_be_read_is_never_started_on(fault: str) -> None:
    world = World()
    world.at(0).fault = fault
    supervisor = world.supervisor(Config())
    world.run_for(supervisor, 10)
    assert not world.spawner.started
    assert supervisor.state.slots["GPU-0"].occupancy == Unknown(reason=fault)


def test_a_foreign_process_means_a_kill_in_the_same_tick() -> None:
    world, supervisor = occupied()
    world.newcomer(0, memory=0)
    decision = supervisor.tick()
    assert decision.actions == (Kill(uuid="GPU-0", generation=1),)


def test_growth_that_nobody_explains_means_a_kill_in_the_same_tick() -> None:
    world, supervisor = occupied()
    world.at(0).unlisted = MIB + 1
    decision = supervisor.tick()
    assert decision.actions == (Kill(uuid="GPU-0", generation=1),)
    assert world.events("gpu.yielding")[0].fields["sign"] == "memory"


def test_growth_within_the_slack_is_nobody() -> None:
    world, supervisor = occupied()
    world.at(0).unlisted = MIB
    world.run_for(supervisor, 5)
    assert isinstance(stressor(supervisor), Running)


@pytest.mark.parametrize("age", [0.1, 1.9, 2.05, 2.3, 2.6, 10.0])
def test_a_newcomer_is_yielded_to_at_every_age_of_the_child(age: float) -> None:
    world = World()
    supervisor = world.supervisor(Config())
    world.run(supervisor, lambda: world.spawner.started)
    world.run_for(supervisor, age)
    world.newcomer(0)
    decision = supervisor.tick()
    assert decision.actions == (Kill(uuid="GPU-0", generation=1),)


def test_growth_while_the_child_still_imports_is_somebody_else() -> None:
    world = World()
    supervisor = world.supervisor(Config())
    world.run(supervisor, lambda: world.spawner.started)
    world.at(0).unlisted = 13 * MIB
    assert supervisor.tick().actions == (Kill(uuid="GPU-0", generation=1),)


def test_a_hand_over_says_its_times() -> None:
    world, supervisor = occupied()
    world.newcomer(0)
    world.run(supervisor, lambda: world.events("gpu.handed_over"))
    fields = world.events("gpu.handed_over")[0].fields
    assert fields["kill_s"] == pytest.approx(0.0)
    assert fields["exit_s"] == pytest.approx(0.2, abs=0.03)
    assert fields["memory_back_s"] == pytest.approx(0.2, abs=0.06)
    assert isinstance(stressor(supervisor), Stopped)


def test_memory_back_is_not_claimed_where_a_newcomers_memory_cannot_be_read() -> None:
    world, supervisor = occupied()
    hidden = world.newcomer(0, memory=0)
    world.at(0).foreign[:] = [GpuProcess(pid=hidden.pid, memory=None, started=hidden.started)]
    world.at(0).unlisted = 100 * GIB
    world.run(supervisor, lambda: world.events("gpu.handed_over"))
    assert world.events("gpu.handed_over")[0].fields["memory_back_s"] is None


def test_a_gpu_is_left_alone_for_the_rearm_time_after_the_newcomer_is_gone() -> None:
    world, supervisor = occupied(config=Config(rearm=10))
    world.newcomer(0)
    world.run(supervisor, lambda: world.events("gpu.handed_over"))
    world.at(0).foreign.clear()
    gone = world.now
    world.run(supervisor, lambda: len(world.spawner.started) == 2)
    assert 5.0 <= world.spawner.started[1][1] - gone <= 15.2


def test_the_rearm_time_begins_again_with_every_newcomer() -> None:
    world, supervisor = occupied(config=Config(rearm=4))
    for _ in range(5):
        world.newcomer(0)
        world.run_for(supervisor, 1.0)
        world.at(0).foreign.clear()
        world.run_for(supervisor, 1.5)
    assert len(world.spawner.started) == 1


def test_after_a_newcomer_that_only_memory_showed_the_gpu_is_left_alone_too() -> None:
    world, supervisor = occupied(config=Config(rearm=10))
    world.at(0).unlisted = 20 * MIB
    world.run(supervisor, lambda: world.events("gpu.yielding"))
    world.at(0).unlisted = 0
    gone = world.now
    world.run(supervisor, lambda: len(world.spawner.started) == 2)
    assert world.spawner.started[1][1] - gone >= 5.0


def test_two_sentinels_that_see_each_other_draw_different_pauses() -> None:
    pauses = set()
    clock = HostClock()
    for _ in range(5):
        world, supervisor = occupied(config=Config(rearm=10))
        world.chance = clock.chance
        world.newcomer(0)
        world.run(supervisor, times(world, "gpu.handed_over", 1))
        pauses.add(supervisor.state.slots["GPU-0"].rearm)
    assert len(pauses) > 1
    assert all(5.0 <= pause <= 15.0 for pause in pauses)


def test_a_gpu_that_turns_unknown_loses_its_child_at_once() -> None:
    world, supervisor = occupied()
    world.at(0).fault = "Unknown Error"
    assert supervisor.tick().actions == (Kill(uuid="GPU-0", generation=1),)
    world.run_for(supervisor, 3)
    assert not world.events("stressor.failed")


def test_silence_of_one_gpu_makes_it_unknown_and_the_other_goes_on() -> None:
    world, supervisor = occupied(gpus=2)
    world.at(0).silent = True
    world.run(supervisor, lambda: world.events("gpu.unknown"), within=5.2)
    assert [uuid for uuid, _ in world.spawner.killed] == ["GPU-0"]
    assert isinstance(stressor(supervisor, 1), Running)


def test_light_graphics_shares_the_gpu_and_heavy_graphics_does_not() -> None:
    world, supervisor = occupied()
    xorg = GpuProcess(pid=7, kind=ProcessKind.GRAPHICS, memory=4 * MIB, started=7)
    world.at(0).foreign.append(xorg)
    world.at(0).unlisted = -4 * MIB  # it was there all along, as far as memory tells
    world.run_for(supervisor, 2)
    assert isinstance(stressor(supervisor), Running)
    game = GpuProcess(pid=8, kind=ProcessKind.GRAPHICS, memory=200 * MIB, started=8)
    world.at(0).foreign.append(game)
    world.at(0).unlisted = -204 * MIB
    assert supervisor.tick().actions == (Kill(uuid="GPU-0", generation=1),)


def test_others_that_free_what_they_held_do_not_blind_us_to_the_next() -> None:
    world = World()
    xorg = GpuProcess(pid=7, kind=ProcessKind.GRAPHICS, memory=50 * MIB, started=7)
    world.at(0).foreign.append(xorg)
    supervisor = world.supervisor(Config())
    world.run(supervisor, lambda: world.events("stressor.ready"))
    world.run_for(supervisor, 0.2)
    world.at(0).foreign.clear()
    world.run_for(supervisor, 0.2)
    world.at(0).unlisted = 2 * MIB
    assert supervisor.tick().actions == (Kill(uuid="GPU-0", generation=1),)


# --- failures --------------------------------------------------------------------------------


def fail(
    world: World,
    *,
    gpu: int = 0,
    kind: FailureKind = FailureKind.WORKLOAD,
    reason: str = "boom",
) -> None:
    """Let the child of a GPU give up."""
    child = world.at(gpu).child
    assert child is not None
    child.waiting.append(Failed(kind=kind, reason=reason))
    child.dies_at, child.code = world.now, 82


def test_a_failure_is_followed_by_a_growing_pause() -> None:
    world = World()
    supervisor = world.supervisor(Config())
    for count in range(1, 6):
        world.run(supervisor, started(world, count))
        fail(world)
        world.run(supervisor, times(world, "stressor.failed", count))
        assert isinstance(stressor(supervisor), Backoff)
    assert [e.fields["pause_s"] for e in world.events("stressor.failed")] == [1, 2, 4, 8, 16]
    starts = [at for _, at in world.spawner.started]
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert all(gap >= pause for gap, pause in zip(gaps, [1, 2, 4, 8], strict=True))


def test_a_minute_of_running_forgets_the_pause_but_not_the_count() -> None:
    world, supervisor = occupied()
    for count in range(1, 4):
        world.run_for(supervisor, 64)
        fail(world)
        world.run(supervisor, times(world, "stressor.failed", count))
    assert [e.fields["pause_s"] for e in world.events("stressor.failed")] == [1, 1, 1]
    assert world.events("stressor.failed")[-1].fields["failures"] == 3


def test_ten_failures_within_an_hour_are_fatal_and_stay_so() -> None:
    world = World(tick=0.5)
    supervisor = world.supervisor(Config())
    for count in range(1, 11):
        world.run(supervisor, started(world, count), within=400)
        fail(world, reason="no luck")
        world.run_for(supervisor, 1)
    given_up = stressor(supervisor)
    assert isinstance(given_up, Fatal)
    assert "10 failures" in given_up.reason
    assert "no luck" in given_up.reason
    world.run_for(supervisor, 2000)
    assert len(world.spawner.started) == 10


def test_what_no_retry_can_mend_is_fatal_at_once_and_on_all_gpus_it_is_the_end() -> None:
    world = World(gpus=2)
    supervisor = world.supervisor(Config())
    world.run(supervisor, started(world, 2))
    fail(world, kind=FailureKind.UNUSABLE, reason="torch without CUDA")
    world.run(supervisor, times(world, "stressor.fatal", 1))
    assert stressor(supervisor) == Fatal(reason="torch without CUDA", unusable=True)
    world.run_for(supervisor, 60)
    assert supervisor.state.shutdown is None, "the other GPU may still do"
    fail(world, gpu=1, kind=FailureKind.MALFORMED, reason="no workload")
    world.run(supervisor, lambda: supervisor.state.finished)
    assert "no workload" in str(world.events("sentinel.stopping")[0].fields["reason"])
    assert supervisor.run() is ExitCode.USAGE


def test_running_out_of_memory_beside_a_newcomer_is_no_failure() -> None:
    world = World()
    supervisor = world.supervisor(Config())
    world.run(supervisor, lambda: world.spawner.started)
    world.run_for(supervisor, 2.1)
    world.at(0).unlisted = 120 * GIB
    fail(world, kind=FailureKind.OUT_OF_MEMORY, reason="no memory")
    world.run(supervisor, lambda: world.events("stressor.stopped"), within=6)
    assert not world.events("stressor.failed")


def test_running_out_of_memory_alone_is_a_failure() -> None:
    world = World()
    supervisor = world.supervisor(Config())
    world.run(supervisor, lambda: world.spawner.started)
    fail(world, kind=FailureKind.OUT_OF_MEMORY, reason="no memory")
    world.run(supervisor, lambda: world.events("stressor.failed"), within=6)


@pytest.mark.parametrize(
    ("code", "words"),
    [(-9, "signal 9"), (-11, "signal 11"), (1, "code 1"), (0, "code 0"), (-14, "stuck")],
)
def test_an_exit_that_we_did_not_cause_is_a_failure(code: int, words: str) -> None:
    world, supervisor = occupied()
    child = world.at(0).child
    assert child is not None
    child.dies_at, child.code = world.now, code
    world.run(supervisor, lambda: world.events("stressor.failed"), within=6)
    assert words in str(world.events("stressor.failed")[0].fields["reason"])


def test_a_lease_that_ran_out_is_no_failure() -> None:
    world, supervisor = occupied()
    child = world.at(0).child
    assert child is not None
    child.dies_at, child.code = world.now, 80
    world.run(supervisor, lambda: len(world.events("stressor.ready")) == 2)
    assert not world.events("stressor.failed")


def test_a_kernel_timer_that_ended_children_while_we_were_stopped_is_no_failure() -> None:
    world, supervisor = occupied()
    child = world.at(0).child
    assert child is not None
    world.pass_time(20)
    child.dies_at, child.code = world.now, -14
    world.run(supervisor, lambda: len(world.events("stressor.ready")) == 2)
    assert not world.events("stressor.failed")
    assert world.events("sentinel.stalled")


def test_a_child_that_is_never_ready_is_killed_and_counted() -> None:
    world = World()
    supervisor = world.supervisor(Config(start_timeout=20))
    world.run(supervisor, lambda: world.spawner.started)
    assert world.at(0).child is not None
    world.at(0).child.mute = True  # type: ignore[union-attr]
    world.run(supervisor, lambda: world.events("stressor.failed"), within=22)
    assert world.now - world.spawner.started[0][1] >= 20


def test_a_child_without_progress_is_killed_and_counted() -> None:
    world, supervisor = occupied(config=Config(hang_after=30))
    world.at(0).child.mute = True  # type: ignore[union-attr]
    world.run(supervisor, lambda: world.events("stressor.failed"), within=32)
    assert "no progress for 30 s" in str(world.events("stressor.failed")[0].fields["reason"])


# --- stopping --------------------------------------------------------------------------------


def test_a_stop_asks_every_child_at_once_and_kills_what_stays() -> None:
    world, supervisor = occupied(gpus=3, config=Config(grace=5))
    world.at(1).child.mute = True  # type: ignore[union-attr]
    world.interrupts.pending = ("SIGTERM", False)
    supervisor.tick()
    assert len(world.spawner.asked) == 3
    world.run(supervisor, lambda: supervisor.state.finished, within=7)
    assert [uuid for uuid, _ in world.spawner.killed] == ["GPU-1"]
    assert world.spawner.killed[0][1] - world.spawner.asked[0][1] == pytest.approx(5, abs=0.05)


def test_a_second_interrupt_kills_at_once() -> None:
    world, supervisor = occupied(gpus=2)
    for place in world.gpus.values():
        place.child.mute = True  # type: ignore[union-attr]
    world.interrupts.pending = ("SIGINT", False)
    world.run_for(supervisor, 0.1)
    world.interrupts.pending = ("SIGINT", True)
    world.run_for(supervisor, 0.1)
    assert len(world.spawner.killed) == 2


def test_a_newcomer_during_a_stop_is_still_yielded_to_at_once() -> None:
    world, supervisor = occupied()
    world.at(0).child.mute = True  # type: ignore[union-attr]
    world.interrupts.pending = ("SIGTERM", False)
    supervisor.tick()
    world.newcomer(0)
    assert supervisor.tick().actions == (Kill(uuid="GPU-0", generation=1),)


def test_nothing_is_started_during_a_stop() -> None:
    world = World(gpus=2)
    world.newcomer(0)
    supervisor = world.supervisor(Config())
    world.run(supervisor, lambda: world.events("stressor.ready"))
    world.at(1).child.mute = True  # type: ignore[union-attr]
    world.interrupts.pending = ("SIGTERM", False)
    supervisor.tick()
    world.at(0).foreign.clear()
    world.run(supervisor, lambda: supervisor.state.finished)
    assert len(world.spawner.started) == 1


def test_a_child_that_survives_sigkill_is_said_and_never_replaced() -> None:
    world, supervisor = occupied()
    world.newcomer(0)
    supervisor.tick()
    world.at(0).child.dies_at = world.now + 1e6  # type: ignore[union-attr]
    world.run(supervisor, lambda: world.events("stressor.unkillable"), within=11)
    world.at(0).foreign.clear()
    world.run_for(supervisor, 100)
    assert isinstance(stressor(supervisor), Stopping)
    assert len(world.spawner.started) == 1
    assert len(world.events("stressor.unkillable")) == 1
    world.interrupts.pending = ("SIGTERM", False)
    world.run(supervisor, lambda: supervisor.state.finished, within=16)
    assert supervisor.run() == 7


def test_the_time_given_ends_it() -> None:
    world, supervisor = occupied(config=Config(run_for=20))
    world.run(supervisor, lambda: supervisor.state.finished, within=21)
    assert world.events("sentinel.stopping")[0].fields["reason"] == "its time is over"
    assert supervisor.run() == 0


# --- the probe -------------------------------------------------------------------------------


def test_a_probe_that_dies_is_replaced_at_once_and_children_live_on() -> None:
    world, supervisor = occupied()
    world.probe.exits_with = 1
    world.run(supervisor, lambda: world.probe.generation == 2, within=0.2)
    world.run_for(supervisor, 10)
    assert isinstance(stressor(supervisor), Running)


def test_probes_that_keep_dying_are_replaced_ever_more_slowly_and_children_stop() -> None:
    world, supervisor = occupied()
    starts: list[float] = []
    for _ in range(400):
        world.probe.exits_with = 1
        before = world.probe.generation
        world.run_for(supervisor, 0.1)
        if world.probe.generation != before:
            starts.append(world.now)
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert gaps[-1] > 3 > gaps[0]
    assert world.at(0).child is None
    assert not world.events("stressor.failed")


def test_a_call_that_hangs_costs_only_its_gpu() -> None:
    world, supervisor = occupied(gpus=2)
    world.probe.hung = Call(uuid="GPU-0", name="memory", since=world.now)
    world.run(supervisor, lambda: world.probe.generation == 2, within=4)
    assert world.probe.skip == ("GPU-0",)
    world.run_for(supervisor, 5)
    assert [uuid for uuid, _ in world.spawner.killed] == ["GPU-0"]
    assert isinstance(stressor(supervisor, 1), Running)
    assert isinstance(supervisor.state.slots["GPU-0"].occupancy, Unknown)


def test_a_gpu_on_which_calls_hang_is_left_out_longer_each_time() -> None:
    world, supervisor = occupied(gpus=2)
    pauses = []
    for _ in range(3):
        world.probe.hung = Call(uuid="GPU-0", name="memory", since=world.now)
        again = len(world.events("probe.hung")) + 1
        world.run(supervisor, times(world, "probe.hung", again), within=4)
        pauses.append(round(float(str(world.events("probe.hung")[-1].fields["pause_s"]))))
        world.run_for(supervisor, 2)
    assert pauses == [10, 20, 40]


def test_a_gpu_that_was_left_out_is_read_and_occupied_again() -> None:
    world, supervisor = occupied()
    world.probe.hung = Call(uuid="GPU-0", name="memory", since=world.now)
    world.run(supervisor, lambda: world.probe.generation == 2, within=4)
    assert watched(world) == []
    world.run_for(supervisor, 10.1)
    assert watched(world) == ["GPU-0"]


def test_the_readings_of_before_a_stop_of_ours_are_not_held_against_the_probe() -> None:
    world, supervisor = occupied()
    world.pass_time(30)
    supervisor.tick()
    world.run_for(supervisor, 1)
    assert world.probe.generation == 1


def test_a_start_waits_for_a_second_look() -> None:
    world = World()
    supervisor = world.supervisor(Config())
    while not isinstance(supervisor.state.slots["GPU-0"].occupancy, Idle):
        assert not world.spawner.started
        world.pass_time(0.025)
        supervisor.tick()
    assert not world.spawner.started
    world.run_for(supervisor, 0.1)
    assert isinstance(stressor(supervisor), Starting)


@pytest.mark.parametrize("trait", ["exclusive", "mig"])
def test_a_gpu_that_nobody_could_share_is_left_alone(
    trait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    supervisor = world.supervisor(Config())
    read = world.probe._read

    def changed(place: object) -> Reading:
        values = {**vars(read(place)), trait: True}  # type: ignore[arg-type]
        return Reading(**values)

    monkeypatch.setattr(world.probe, "_read", changed)
    world.run_for(supervisor, 5)
    assert not world.spawner.started
    assert isinstance(supervisor.state.slots["GPU-0"].occupancy, Busy)


def test_a_gpu_that_is_claimed_again_and_again_is_left_alone_for_longer() -> None:
    world, supervisor = occupied(config=Config(rearm=2.0, rearm_longest=20.0))
    world.chance = lambda: 0.5
    alone: list[float] = []
    for _ in range(8):
        world.newcomer(0)
        world.run(supervisor, times(world, "gpu.handed_over", len(alone) + 1))
        world.at(0).foreign.clear()
        alone.append(supervisor.state.slots["GPU-0"].rearm)
        world.run(supervisor, lambda: isinstance(stressor(supervisor), Running), within=40)
    assert alone == [2, 2, 2, 4, 8, 16, 20, 20]
    world.tick = 1.0
    world.run_for(supervisor, 3600)
    world.tick = 0.025
    world.newcomer(0)
    world.run(supervisor, times(world, "gpu.handed_over", 9))
    assert supervisor.state.slots["GPU-0"].rearm == 2, "what was an hour ago is forgotten"


ASK = Config(yield_how="ask", yield_grace=3.0)


def test_a_stressor_may_be_asked_to_yield_and_is_killed_when_its_time_is_over() -> None:
    for stubborn in (False, True):
        world, supervisor = occupied(config=ASK)
        child = world.at(0).child
        assert child is not None
        child.mute = stubborn
        came = world.now
        world.newcomer(0)
        world.run(supervisor, times(world, "gpu.handed_over", 1))
        assert [round(at - came, 1) for _, at in world.spawner.asked] == [0.0]
        assert [round(at - came, 1) for _, at in world.spawner.killed] == [3.0] * stubborn
        (handed,) = world.events("gpu.handed_over")
        assert (handed.fields["kill_s"] is None) is not stubborn
        assert not world.events("stressor.failed")


def test_how_to_yield_may_be_another_for_one_gpu() -> None:
    world, supervisor = occupied(gpus=2, config=Config(each={"GPU-1": ASK}))
    world.newcomer(0)
    world.newcomer(1)
    world.run(supervisor, times(world, "gpu.handed_over", 2))
    assert [uuid for uuid, _ in world.spawner.killed] == ["GPU-0"]
    assert [uuid for uuid, _ in world.spawner.asked] == ["GPU-1"]
