"""When a GPU is occupied and when it is not, by its own rules and by those over all GPUs."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from sentinel.config.model import Config
from sentinel.config.schedule import parse_hours
from sentinel.core.gpu_state import Busy, Idle, Running, Starting, Unknown
from sentinel.core.state import Orders
from sentinel.core.step import Kill, Start
from sentinel.protocol.commands import PauseGpus, ResumeGpus
from tests.harness.core_scenarios import held, occupied, on_stressors, send
from tests.harness.parameters import mostly_long
from tests.harness.world import World


def test_a_start_needs_a_second_idle_reading() -> None:
    world = World()
    while not isinstance(world.gpu_state().occupancy, Idle):
        assert not world.spawner.started
        world.pass_time(0.025)
        world.supervisor.tick()
    assert not world.spawner.started
    world.run_for(0.1)
    assert isinstance(world.gpu_state().stressor, Starting)


def test_at_most_one_start_per_tick_and_it_comes_last() -> None:
    world = World(gpus=4)
    decisions = world.run_for(2)
    starts = [[a for a in d.actions if isinstance(a, Start)] for d in decisions]
    assert max(map(len, starts)) == 1
    assert sum(map(len, starts)) == 4
    assert all(
        isinstance(d.actions[-1], Start) for d, s in zip(decisions, starts, strict=True) if s
    )


@pytest.mark.parametrize(
    ("trait", "value", "occupancy"),
    [
        ("fault", "Unknown Error", Unknown),
        ("fault", "GPU is lost", Unknown),
        ("exclusive", True, Busy),
        ("mig", True, Busy),
    ],
)
def test_no_stressor_starts_on_a_gpu_that_cannot_be_read_or_shared(
    trait: str, value: object, occupancy: type
) -> None:
    world = World()
    setattr(world.at(0), trait, value)
    world.run_for(10)
    assert not world.spawner.started
    found = world.gpu_state().occupancy
    assert isinstance(found, occupancy)
    assert not isinstance(found, Unknown) or found.reason == value


def test_the_child_of_a_gpu_that_becomes_unknown_is_killed_at_once() -> None:
    world = occupied()
    world.at(0).fault = "Unknown Error"
    assert on_stressors(world.supervisor.tick()) == (Kill(uuid="GPU-0", generation=1),)
    world.run_for(3)
    assert not world.events("stressor.failed")


def test_a_gpu_without_readings_becomes_unknown_and_the_other_stays_held() -> None:
    world = occupied(gpus=2)
    world.at(0).silent = True
    world.run(lambda: world.events("gpu.unknown"), within=5.2)
    assert [uuid for uuid, _ in world.spawner.killed] == ["GPU-0"]
    assert isinstance(world.gpu_state(1).stressor, Running)


def reason(world: World, gpu: int) -> str:
    """Return the reason in the last status of a GPU."""
    world.run_for(61)
    statuses = [e for e in world.events("gpu.status") if e.gpu == f"GPU-{gpu}"]
    return str(statuses[-1].fields["reason"])


def test_the_number_of_held_gpus_is_limited() -> None:
    world = World(gpus=4, config=Config(max_gpus=2))
    world.run_for(30)
    assert held(world) == [0, 1]
    assert "limits.gpus" in reason(world, 3)
    world.newcomer(0)
    world.run_for(30)
    assert held(world) == [1, 2]


def test_one_gpu_is_left_idle_and_another_is_released_when_it_becomes_busy() -> None:
    world = World(gpus=3, config=Config(leave_idle=1, rearm=1.0))
    world.run_for(30)
    assert held(world) == [0, 1]
    assert "limits.leave_idle" in reason(world, 2)
    world.newcomer(2)
    world.run(lambda: held(world) == [0])
    (released,) = world.events("gpu.released")
    assert released.gpu == "GPU-1", "the last one started"
    world.run(lambda: world.events("stressor.stopped"))
    assert world.events("stressor.stopped")[0].fields["cause"] == "policy"
    world.run_for(30)
    assert held(world) == [0]
    assert not world.events("stressor.failed")
    world.at(2).foreign.clear()
    world.run_for(30)
    assert held(world) == [0, 1]
    assert len(world.events("gpu.released")) == 1


def test_idle_gate_all_applies_to_the_first_start_only() -> None:
    world = World(gpus=3, config=Config(idle_gate="all", rearm=1.0))
    world.newcomer(2)
    world.run_for(30)
    assert held(world) == []
    assert reason(world, 0) == "not before GPU 2 is idle, too (idle.gate)"
    world.at(2).foreign.clear()
    world.run_for(30)
    assert held(world) == [0, 1, 2]
    world.newcomer(1)
    world.run_for(10)
    assert held(world) == [0, 2], "running stressors stay"
    world.at(1).foreign.clear()
    world.run_for(10)
    assert held(world) == [0, 1, 2]


def test_starts_are_rate_limited() -> None:
    world = World(gpus=4, config=Config(starts_per_second=0.25))
    world.run_for(30)
    starts = [at for _, at in world.spawner.started]
    assert len(starts) == 4
    assert all(3.9 < later - earlier < 4.2 for earlier, later in pairwise(starts))


@pytest.mark.parametrize("broken_by", ["newcomer", "fault"])
def test_idle_wait_is_uninterrupted(broken_by: str) -> None:
    world = World(config=Config(idle_wait=60.0, rearm=1.0))
    world.run_for(50)
    if broken_by == "newcomer":
        world.newcomer(0)
        world.run_for(2)
        world.at(0).foreign.clear()
    else:
        world.at(0).fault = "a fault"
        world.run_for(2)
        world.at(0).fault = None
    began = world.now
    world.run_for(58)
    assert not world.spawner.started
    world.run_for(5)
    assert [60.0 <= at - began < 62 for _, at in world.spawner.started] == [True]


@pytest.mark.parametrize("gate", ["each", "all"])
@mostly_long("seconds", [None, 30.0])
def test_the_time_of_a_pause_does_not_count_as_idle(seconds: float | None, gate: str) -> None:
    world = World(config=Config(idle_wait=90.0, idle_gate=gate), gpus=2, with_api=True)
    world.run(lambda: world.state.served)
    assert send(world, PauseGpus, gpus=("GPU-0",), seconds=seconds) is None
    world.run_for(20)
    if seconds is None:
        assert send(world, ResumeGpus, gpus=("GPU-0",)) is None
    world.run(lambda: world.events("gpu.resumed"), within=15)
    resumed = world.now
    assert reason(world, 0) == "its pause ended less than 1 min 30 s ago (idle.wait)"
    world.run(lambda: held(world) == [0, 1], within=40)
    (started,) = (at for uuid, at in world.spawner.started if uuid == "GPU-0")
    assert 90.0 <= round(started - resumed, 6) < 92.0


def test_a_failed_stressor_does_not_restart_the_idle_wait() -> None:
    world = World(config=Config(idle_wait=60.0))
    world.run(lambda: held(world), within=70)
    world.end_child(code=1)
    world.run(lambda: len(world.spawner.started) == 2, within=5)


def test_a_used_gpu_is_not_idle_and_own_load_does_not_count() -> None:
    world = World(config=Config(idle_utilization=0.05))
    world.at(0).utilization = 0.07
    assert "used 7% of the time (idle.utilization)" in reason(world, 0)
    world.at(0).utilization = 0.04
    world.run(lambda: held(world), within=30)
    world.at(0).utilization = 1.0
    world.run_for(10)
    assert held(world) == [0]
    world.end_child(code=1)
    world.run(lambda: world.events("stressor.failed"))
    failed_at = world.now
    world.run_for(1.0)
    world.at(0).utilization = 0.0
    world.run(lambda: len(world.spawner.started) == 2, within=20)
    assert world.now - failed_at >= 2.0
    assert len(world.events("gpu.busy")) == 1, "the stressor's own load counted"


def test_a_gpu_of_unknown_utilization_is_not_idle_by_utilization() -> None:
    world = World(config=Config(idle_utilization=0.05))
    world.at(0).utilization = None
    assert "cannot be read (idle.utilization)" in reason(world, 0)
    assert not world.spawner.started


def test_quiet_hours_release_every_gpu_and_prevent_starts() -> None:
    world = World(gpus=2, tick=0.2, config=Config(quiet=parse_hours("Wed 12:03-12:05")))
    world.run_for(2 * 60)
    assert held(world) == [0, 1]
    world.run(lambda: held(world) == [], within=70)
    assert world.wall.minute == 3
    assert world.wall.second < 2, "within two ticks of the beginning"
    reasons = {event.fields["reason"] for event in world.events("gpu.released")}
    assert reasons == {"quiet hours until 12:05"}
    assert reason(world, 0) == "quiet hours until 12:05"
    world.run(lambda: len(world.spawner.started) == 4, within=3 * 60)
    assert (world.wall.minute, world.wall.second) in {(5, 0), (5, 1)}
    assert not world.events("stressor.failed")


def test_outside_its_hours_every_gpu_is_free_and_within_them_it_is_occupied() -> None:
    world = World(gpus=2, tick=0.2, config=Config(hours=parse_hours("Wed 12:03-12:05")))
    world.run_for(30)
    assert not world.spawner.started
    assert reason(world, 0) == "occupied only Wed 12:03-12:05, next at 12:03"
    world.run(lambda: held(world) == [0, 1], within=130)
    assert world.wall.minute == 3
    world.run(lambda: held(world) == [], within=3 * 60)
    assert (world.wall.minute, world.wall.second < 2) == (5, True)
    reasons = {event.fields["reason"] for event in world.events("gpu.released")}
    assert reasons == {"occupied only Wed 12:03-12:05, next at Wed 12:03"}


def test_a_clock_set_forward_into_quiet_hours_releases_every_gpu() -> None:
    world = World(config=Config(quiet=parse_hours("14:00-15:00")))
    world.run(lambda: held(world) == [0])
    world.wall += timedelta(hours=2)
    world.run(lambda: held(world) == [], within=2)


def test_the_daemon_ends_at_the_configured_time() -> None:
    world = World(tick=0.2)
    until = world.wall + timedelta(minutes=5)
    world.configure(Config(until=until))
    world.run(lambda: world.state.finished, within=310)
    assert timedelta() <= world.wall - until < timedelta(seconds=2)
    (stopping,) = world.events("sentinel.stopping")
    assert stopping.fields["reason"] == "its end at 2026-01-07 12:05 has come"


def test_a_dry_run_decides_and_never_starts() -> None:
    world = World(
        gpus=2,
        config=Config(dry_run=True, rearm=2.0, max_gpus=1),
        orders=Orders(explain=True),
    )
    world.run_for(5)
    world.newcomer(1)
    world.run_for(5)
    world.at(1).foreign.clear()
    world.run_for(10)
    assert not world.spawner.started
    verdicts = [(e.gpu, e.fields["rule"]) for e in world.events("gpu.verdict")]
    assert [rule for gpu, rule in verdicts if gpu == "GPU-0"] == ["unknown", "confirm", "idle"]
    rules = [rule for gpu, rule in verdicts if gpu == "GPU-1"]
    assert rules == ["unknown", "confirm", "idle", "process", "confirm", "rearm", "idle"]


def test_the_deciding_rule_is_reported_when_it_changes() -> None:
    world = World(gpus=2, config=Config(max_gpus=1), orders=Orders(explain=True))
    world.run_for(120)
    verdicts = [(e.gpu, e.fields["rule"]) for e in world.events("gpu.verdict")]
    assert [rule for gpu, rule in verdicts if gpu == "GPU-0"] == [
        "unknown",
        "confirm",
        "starting",
        "running",
    ]
    assert [rule for gpu, rule in verdicts if gpu == "GPU-1"] == [
        "unknown",
        "confirm",
        "limits.gpus",
    ]
