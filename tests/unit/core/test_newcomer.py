"""Newcomers: who watches, the evidence, the kill, the hand-over and the re-arm time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sentinel.config.model import Config
from sentinel.config.setting import parse_ignore_rules
from sentinel.core import newcomer
from sentinel.core.attribution import SLACK_BYTES
from sentinel.core.gpu_state import GpuState, Idle, Running, Starting, StopCause, Stopped, Stopping
from sentinel.core.node.probe_supervision import CONFIRM_AFTER_S, watch_list
from sentinel.core.observation import ChildExit, WatchTimes
from sentinel.core.step import Kill
from sentinel.protocol.gpu import GpuProcess, ProcessKind
from sentinel.protocol.stressor import MemoryContention, Ready
from sentinel.supervisor.bootstrap import HostClock
from tests.harness.core_scenarios import occupied, on_stressors, reconfigured, times
from tests.harness.world import GIB, World
from tests.harness.world.gpus import fake_gpu

MIB = 2**20

ASK = Config(yield_how="ask", yield_grace=3.0)


# --- evidence --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "evidence"),
    [
        (lambda world: world.newcomer(0, memory=0), "process"),
        (lambda world: setattr(world.at(0), "unlisted", MIB + 1), "memory"),
        (lambda world: setattr(world.at(0), "omitted_processes", 1_000_000), "process"),
    ],
    ids=["a process", "growth", "a list too long to read"],
)
def test_evidence_of_a_newcomer_causes_a_kill_in_the_same_tick(
    begin: Callable[[World], object], evidence: str
) -> None:
    world = occupied()
    begin(world)
    assert on_stressors(world.supervisor.tick()) == (Kill(uuid="GPU-0", generation=1),)
    assert world.events("gpu.yielding")[0].fields["evidence"] == evidence
    reasons = [str(event.fields["reason"]) for event in world.events("gpu.busy")]
    more = ", 1000000 of them not listed" if world.at(0).omitted_processes else ""
    assert reasons == ([] if evidence == "memory" else [f"used by foreign processes{more}"])


def test_growth_within_the_slack_is_no_newcomer() -> None:
    world = occupied()
    world.at(0).unlisted = MIB
    world.run_for(5)
    assert isinstance(world.gpu_state().stressor, Running)


@pytest.mark.parametrize(
    ("age", "listed"), [*((age, True) for age in (0.1, 1.9, 2.05, 2.3, 2.6, 10.0)), (0.0, False)]
)
def test_a_newcomer_is_yielded_to_at_every_age_of_the_child(age: float, *, listed: bool) -> None:
    world = World()
    world.run(lambda: world.spawner.started)
    world.run_for(age)
    if listed:
        world.newcomer(0)
    else:
        world.at(0).unlisted = 13 * MIB
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


@pytest.mark.parametrize("listed", [True, False])
def test_a_start_waits_for_the_rearm_time_after_a_newcomer(*, listed: bool) -> None:
    world = occupied(config=Config(rearm=10))
    if listed:
        world.newcomer(0)
    else:
        world.at(0).unlisted = 20 * MIB
    world.run(lambda: world.events("gpu.handed_over" if listed else "gpu.yielding"))
    world.at(0).foreign.clear()
    world.at(0).unlisted = 0
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


CONFIG = Config(unwatched_after=0.075)
STARTING = Starting(since=50.0)
RUNNING = Running(
    since=100.0,
    ready=Ready(held=1, asked=1, chunks=1, refused=False),
    last_progress=100.0,
)
STOPPING = Stopping(
    since=100.0,
    cause=StopCause.POLICY,
    kill_at=200.0,
)


@pytest.mark.parametrize(
    ("state", "since"),
    [
        (Stopped(), None),
        (STARTING, None),
        (replace(STARTING, attaching=60.0), 60.0),
        (RUNNING, 100.0),
        (STOPPING, 100.0),
        (replace(STOPPING, kill_sent=True), None),
        (replace(STOPPING, exit=ChildExit(code=0, at=101.0)), None),
    ],
)
def test_a_living_child_holds_its_gpu_once_it_creates_its_context(
    state: Running | Starting | Stopping | Stopped, since: float | None
) -> None:
    assert newcomer.held_since(GpuState(gpu=fake_gpu(0), stressor=state)) == since


@pytest.mark.parametrize(
    ("probe", "own", "expected"),
    [
        (200.0, 0.0, None),
        (199.93, 0.0, None),
        (199.9, 0.0, 0.1),
        (150.0, 199.6, None),
        (150.0, 199.4, 0.6),
        (0.0, 0.0, 100.0),
    ],
)
def test_the_probe_must_read_often_where_the_stressor_does_not_watch(
    probe: float, own: float, expected: float | None
) -> None:
    gpu_state = GpuState(gpu=fake_gpu(0), stressor=RUNNING)
    times = WatchTimes(probe=probe, stressor=own)
    blind = newcomer.unwatched_for(gpu_state, times, 200.0, CONFIG)
    assert blind == (None if expected is None else pytest.approx(expected))


def test_a_start_delays_the_reads_of_its_gpu() -> None:
    starting = replace(STARTING, attaching=199.0)
    gpu_state = GpuState(gpu=fake_gpu(0), stressor=starting)
    assert newcomer.unwatched_for(gpu_state, WatchTimes(probe=199.6), 200.0, CONFIG) is None
    assert newcomer.unwatched_for(gpu_state, WatchTimes(probe=199.4), 200.0, CONFIG)


def unwatch(world: World) -> None:
    """Let the stressor not watch its GPU."""
    child = world.child()
    child.watches = False


def own_limit(world: World) -> int | None:
    running = world.gpu_state().stressor
    assert isinstance(running, Running)
    return running.memory_limit.used if running.memory_limit is not None else None


def test_a_gpu_that_nobody_reads_is_given_up_and_that_is_no_failure() -> None:
    world = occupied(config=CONFIG)
    unwatch(world)
    world.run_for(1.0)
    assert not world.spawner.killed, "the probe reads it"
    stopped_at = world.now
    world.probe.stopped = True
    world.run(lambda: world.spawner.killed, within=0.2)
    assert world.spawner.killed[0][1] - stopped_at < 0.075 + 2 * world.tick
    (event,) = world.events("gpu.unwatched")
    assert event.fields["unwatched_s"] == pytest.approx(0.1, abs=0.03)
    world.run(lambda: world.events("stressor.stopped"))
    assert world.events("stressor.stopped")[0].fields["cause"] == "unwatched"
    assert not world.events("stressor.failed")


@pytest.mark.parametrize(
    ("code", "event", "words"),
    [(-11, "failed", "SIGSEGV"), (80, "stopped", "unwatched"), (-9, "stopped", "unwatched")],
)
def test_a_stressor_whose_own_end_delays_the_readings_is_not_blamed_on_them(
    code: int, event: str, words: str
) -> None:
    """Such as when the driver frees tens of gigabytes; an exit by our kill is not told from one."""
    world = occupied(config=CONFIG)
    unwatch(world)
    world.probe.stopped = True
    world.end_child(code=code, after=0.1)
    world.run(lambda: world.spawner.killed, within=0.2)
    world.probe.stopped = False
    world.run(lambda: {"stressor.failed", "stressor.stopped"} & {*world.names()}, within=6)
    (found,) = world.events(f"stressor.{event}")
    assert words in str(found.fields)


def test_nothing_starts_where_nothing_is_read() -> None:
    world = occupied(config=CONFIG)
    unwatch(world)
    world.probe.stopped = True
    world.run(lambda: world.spawner.killed, within=0.2)
    world.run_for(4.0)
    assert len(world.spawner.started) == 1


def test_a_gpu_that_is_read_too_slowly_is_given_up_less_and_less_often() -> None:
    world = occupied(config=CONFIG)
    gaps = []
    for _ in range(4):
        unwatch(world)
        world.probe.frozen_at = world.now
        world.run(lambda: world.at(0).child is None)
        ended = world.now
        world.probe.frozen_at = None
        world.run(lambda: isinstance(world.gpu_state().stressor, Running), within=30)
        gaps.append(world.spawner.started[-1][1] - ended)
    assert gaps[-1] > 7 > gaps[0]
    assert not world.events("stressor.failed")


@pytest.mark.parametrize("fault", ["dead", "stopped"])
def test_a_stressor_that_watches_itself_survives_a_new_probe(fault: str) -> None:
    world = occupied(config=CONFIG)
    if fault == "dead":
        world.probe.exits_with = 1
    else:
        world.probe.stopped = True
    world.run(lambda: len(world.events("probe.ready")) > 1, within=4.0)
    world.run_for(1.0)
    assert not world.events("gpu.unwatched")
    assert len(world.spawner.started) == 1


def test_a_stressor_on_its_own_lives_on_a_long_lease_and_another_on_a_short_one() -> None:
    world = occupied(config=CONFIG)
    world.run_for(1.0)
    assert world.spawner.leases["GPU-0"] == 3.0
    unwatch(world)
    world.run_for(1.0)
    assert world.spawner.leases["GPU-0"] == 0.075


# --- the limit of the memory -----------------------------------------------------------------


def test_the_limit_is_the_memory_after_ready_and_the_slack() -> None:
    world = occupied()
    assert own_limit(world) == world.at(0).used + SLACK_BYTES
    child = world.child()
    assert child.memory_limit.used == own_limit(world)


def test_the_limit_falls_with_the_memory_of_others() -> None:
    world = World()
    world.at(0).unlisted = 100 * 2**20
    world.run(lambda: world.events("stressor.ready"))
    world.run_for(0.5)
    before = own_limit(world)
    assert before is not None
    world.at(0).unlisted = 0
    world.run_for(0.5)
    assert own_limit(world) == before - 100 * 2**20


def test_beside_an_ignored_process_only_the_supervisor_can_tell() -> None:
    world = occupied(config=Config(ignore=parse_ignore_rules("name=python")))
    assert own_limit(world) is not None
    world.newcomer(0, memory=0)
    world.run_for(2.0)
    assert own_limit(world) is None


# --- a stressor that yields by itself --------------------------------------------------------


def yield_by_itself(world: World, *, asks: bool = False) -> float:
    """Let the child see a newcomer, and end or kill itself; return when it saw that."""
    child = world.child()
    seen_at = world.now - 0.003
    killed_at = None if asks else seen_at + 0.002
    child.outbox.append(MemoryContention(grown=GIB, at=seen_at, took=0.001, killed_at=killed_at))
    if not asks:
        child.dies_at, child.code = world.now + 0.2, -9
    return seen_at


@pytest.mark.parametrize("sees_it", ["at_once", "with_the_exit"])
def test_a_stressor_that_yields_by_itself_is_a_hand_over_with_its_own_times(sees_it: str) -> None:
    world = occupied()
    seen_at = yield_by_itself(world)
    if sees_it == "with_the_exit":
        world.now += 0.5
    world.run(lambda: world.events("gpu.handed_over"), within=10)
    (yielding,) = world.events("gpu.yielding")
    assert yielding.fields["evidence_at"] == seen_at
    assert yielding.fields["grown"] == GIB + SLACK_BYTES
    (handed,) = world.events("gpu.handed_over")
    assert handed.fields["killed_at"] == seen_at + 0.002
    assert handed.fields["kill_s"] == pytest.approx(0.002)
    assert not world.events("stressor.failed")
    assert world.gpu_state().rearm > 0


@pytest.mark.parametrize("time", [-1e308, 1e308])
def test_a_stressor_that_says_that_it_killed_itself_is_killed_all_the_same(time: float) -> None:
    """A workload can send any message; without a kill, it would keep the GPU from a newcomer."""
    world = occupied()
    child = world.child()
    child.outbox.append(MemoryContention(grown=1, at=time, killed_at=time))
    world.run(lambda: world.events("gpu.handed_over"), within=10)
    assert world.spawner.killed
    (handed,) = world.events("gpu.handed_over")
    times = {name: float(str(handed.fields[name])) for name in ("exit_s", "killed_at")}
    assert 0 <= times["exit_s"] < 10
    assert times["killed_at"] <= world.now


def test_a_stressor_that_only_asks_its_workload_has_the_grace() -> None:
    world = occupied(config=Config(yield_how="ask", yield_grace=3.0))
    child = world.child()
    assert not child.memory_limit.at_once
    child.unresponsive = True
    began = world.now
    yield_by_itself(world, asks=True)
    world.run(lambda: world.spawner.killed, within=5)
    assert world.now - began == pytest.approx(3.0, abs=0.2)
    world.run(lambda: world.events("gpu.handed_over"), within=10)


def test_a_changed_way_to_yield_reaches_a_running_stressor() -> None:
    world = occupied()
    child = world.child()
    assert child.memory_limit.at_once
    world.state = reconfigured(world, yield_how="ask")
    world.run_for(0.2)
    assert not child.memory_limit.at_once


def test_a_stressor_that_yields_by_itself_while_it_is_released_is_a_hand_over() -> None:
    world = occupied()
    child = world.child()
    child.unresponsive = True
    world.interrupts.pending = ("a test", False)
    world.run(lambda: isinstance(world.gpu_state().stressor, Stopping))
    yield_by_itself(world)
    world.run(lambda: world.events("gpu.handed_over"), within=10)
    assert len(world.events("gpu.yielding")) == 1


def test_growth_while_a_stressor_is_stopping_turns_the_stop_into_a_kill() -> None:
    world = occupied()
    world.child().unresponsive = True
    world.interrupts.pending = ("a test", False)
    world.run(lambda: isinstance(world.gpu_state().stressor, Stopping))
    world.run_for(0.1)
    assert not world.spawner.killed
    world.at(0).unlisted = MIB + 1
    assert on_stressors(world.supervisor.tick()) == (Kill(uuid="GPU-0", generation=1),)
    assert world.events("gpu.yielding")[0].fields["evidence"] == "memory"


def test_a_stall_of_everything_is_not_blindness() -> None:
    world = occupied(config=CONFIG)
    world.spawner.frozen_at = world.probe.frozen_at = world.now
    world.now += 0.8
    world.run_for(0.05)
    assert not world.events("gpu.unwatched")
    world.spawner.frozen_at = world.probe.frozen_at = None
    world.run_for(2.0)
    assert not world.spawner.killed


# --- what the probe reads --------------------------------------------------------------------


def test_an_idle_gpu_is_read_again_soon_before_a_start() -> None:
    world = World(config=Config(rearm=60.0))
    world.run(lambda: isinstance(world.gpu_state().occupancy, Idle))
    occupancy = world.gpu_state().occupancy
    assert isinstance(occupancy, Idle)
    due = occupancy.since + CONFIRM_AFTER_S
    assert watch_list(world.state, {}, due - 0.01).at_once == ()
    assert watch_list(world.state, {}, due).at_once == ("GPU-0",)


@pytest.mark.parametrize(
    ("probe_age_s", "stressor_age_s", "interval_s", "shared"),
    [
        (0.0, 0.0, 0.025, True),
        (0.0, newcomer.ALTERNATION_TIMEOUT_S + 0.01, 0.025, False),
        (newcomer.ALTERNATION_TIMEOUT_S + 0.01, 0.0, 0.025, False),
        (0.0, 0.0, 0.026, False),
    ],
)
def test_probe_and_stressor_alternate_while_both_read(
    probe_age_s: float, stressor_age_s: float, interval_s: float, *, shared: bool
) -> None:
    world = occupied()
    now = world.now
    times = WatchTimes(probe=now - probe_age_s, stressor=now - stressor_age_s)
    state = reconfigured(world, watch_interval=interval_s)
    found = watch_list(state, {"GPU-0": times}, now)
    assert found.shared == (("GPU-0",) if shared else ())
    assert watch_list(state, {}, now).shared == ()


def test_a_stressor_learns_whether_the_probe_reads_too() -> None:
    world = occupied()
    world.run_for(1.0)
    assert world.spawner.shared == {"GPU-0": True}
    world.probe.stopped = True
    world.run(lambda: not world.spawner.shared["GPU-0"], within=1.0)


def test_a_stressor_learns_at_once_that_the_probe_is_gone() -> None:
    world = occupied()
    world.run_for(1.0)
    assert world.spawner.shared == {"GPU-0": True}
    world.probe.exits_with = -9
    world.supervisor.turn()
    assert world.spawner.shared == {"GPU-0": False}
