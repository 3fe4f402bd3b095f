"""The pace controller: from targets, readings and the clock to a share of busy time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sentinel.config.model import Config
from sentinel.config.schedule import Duty, parse_duty
from sentinel.core import pace_controller
from sentinel.core.gpu_state import GpuState, Running
from sentinel.core.observation import Observation
from sentinel.core.step import Send
from sentinel.protocol.gpu import Gpu, Reading
from sentinel.protocol.stressor import Pace, Ready
from tests.harness.narrowing import not_none
from tests.harness.world import World

BEGIN = 1000.0
GPU = Gpu(uuid="GPU-0", index=0, name="Fake", pci_bus_id="0", memory_total=1)
READY = Ready(held=1, asked=1, chunks=1, refused=False)
RUNNING = Running(
    since=BEGIN,
    ready=READY,
    last_progress=BEGIN,
)
GPU_STATE = GpuState(gpu=GPU, stressor=RUNNING, generation=1)


class Plant:
    """A simulated GPU that responds to a share of busy time, with the controller.

    Args:
        config: With the targets.
        utilization: What is reported where the share of busy time is so and so.
        power: The watts of that.
        lag: The time constant with which both follow, in seconds.
    """

    def __init__(
        self,
        config: Config,
        utilization: Callable[[float], float] = lambda share: share,
        power: Callable[[float], float] = lambda share: 100 + 600 * share,
        lag: float = 0.0,
    ) -> None:
        self.config, self.gpu_state = config, GPU_STATE
        self.utilization, self.power, self.lag = utilization, power, lag
        self.now = BEGIN
        self.share = self.felt = 1.0
        self.due = BEGIN
        self.sent: list[float] = []
        self.history: list[float] = []
        self.deaf: Callable[[int], bool] = lambda _: False

    def reading(self, number: int) -> Reading:
        deaf = self.deaf(number)
        return Reading(
            uuid="GPU-0",
            at=self.now,
            load_at=self.now,
            # NVML reports whole percents
            utilization=None if deaf else round(100 * self.utilization(self.felt)) / 100,
            power=None if deaf else self.power(self.felt),
        )

    def run(self, seconds: int) -> None:
        """Take a reading each second, twice, as a memory poll repeats the last full reading."""
        for number in range(seconds):
            self.now += 1.0
            follow = 1.0 if not self.lag else 1 - math.exp(-1.0 / self.lag)
            self.felt += (self.share - self.felt) * follow
            self.history.append(self.felt)
            reading = self.reading(number)
            for _ in range(2):
                self.tick(reading)

    def tick(self, reading: Reading | None = None) -> None:
        readings = {} if reading is None else {"GPU-0": reading}
        seen = Observation(now=self.now, readings=readings)
        done = pace_controller.step(self.gpu_state, seen, self.config)
        self.gpu_state, self.due = done.state, done.due
        for action in done.actions:
            assert isinstance(action, Send)
            assert isinstance(action.message, Pace)
            self.share = action.message.share
            assert 0.0 <= self.share <= 1.0
            self.sent.append(self.share)

    def mean(self, seen: Callable[[float], float], seconds: int) -> float:
        return sum(map(seen, self.history[-seconds:])) / seconds


# --- the loops -------------------------------------------------------------------------------


@given(
    target=st.floats(0.05, 0.95),
    gain=st.floats(0.6, 1.6),
    offset=st.floats(-0.03, 0.1),
    lag=st.floats(0.0, 2.0),
    deaf=st.sets(st.integers(0, 119), max_size=40),
)
@example(target=0.2, gain=1.0, offset=0.1, lag=1.0, deaf=set())
def test_a_target_utilization_is_reached_on_any_gpu(
    target: float, gain: float, offset: float, lag: float, deaf: set[int]
) -> None:
    """Within 3 points of what is reachable, after a minute."""

    def answer(share: float) -> float:
        return min(1.0, max(0.0, gain * share + offset)) if share else 0.0

    plant = Plant(Config(util=target), utilization=answer, lag=lag)
    plant.deaf = deaf.__contains__
    plant.run(120)
    reachable = max(answer(pace_controller.MIN_PACE), min(answer(1.0), target))
    assert plant.mean(answer, 30) == pytest.approx(reachable, abs=0.03)


@given(
    target=st.floats(200, 900),
    idle=st.floats(50, 150),
    full=st.floats(400, 800),
    lag=st.floats(0.0, 2.0),
)
def test_a_target_power_is_reached_within_the_range_of_the_workload(
    target: float, idle: float, full: float, lag: float
) -> None:
    def answer(share: float) -> float:
        return idle + (full - idle) * share

    plant = Plant(Config(power=target), power=answer, lag=lag)
    plant.run(60)
    assert plant.mean(answer, 20) == pytest.approx(min(target, full), rel=0.02)


def test_a_reached_target_causes_no_corrections() -> None:
    plant = Plant(Config(util=0.5))
    plant.run(100)
    assert plant.sent == [0.5]


def test_without_a_target_no_pace_is_sent() -> None:
    plant = Plant(Config())
    plant.run(30)
    assert plant.sent == []
    assert plant.gpu_state is GPU_STATE


def test_without_readings_the_first_pace_stays() -> None:
    for config, share in ((Config(util=0.3), 0.3), (Config(power=400.0), 0.5)):
        plant = Plant(config)
        plant.deaf = lambda _: True
        plant.run(30)
        assert plant.sent == [share]


def test_readings_that_may_show_the_previous_pace_do_not_count() -> None:
    plant = Plant(Config(util=0.5, util_samples=1), utilization=lambda _: 1.0)
    plant.tick()
    plant.now += 0.9
    plant.tick(plant.reading(0))
    assert plant.sent == [0.5]
    plant.now += 0.2
    plant.tick(plant.reading(0))
    assert plant.sent == [0.5, 0.25]


def test_a_correction_takes_the_configured_number_and_interval_of_samples() -> None:
    for every, samples, expected in ((1.0, 5, 6), (1.0, 2, 3), (3.0, 2, 5)):
        config = Config(util=0.5, util_every=every, util_samples=samples)
        plant = Plant(config, utilization=lambda _: 1.0)
        plant.tick()
        seconds = 0
        while len(plant.sent) < 2:
            plant.run(1)
            seconds += 1
        assert seconds == pytest.approx(expected, abs=1)


def test_a_repeated_reading_is_no_second_sample() -> None:
    plant = Plant(Config(util=0.5, util_every=0.1, util_samples=2), utilization=lambda _: 1.0)
    plant.tick()
    plant.now += 2.0
    reading = plant.reading(0)
    for _ in range(10):
        plant.tick(reading)
    assert plant.sent == [0.5]


@pytest.mark.parametrize("config", [Config(util=0.5), Config(power=400.0)])
def test_a_loop_does_not_wind_up_while_another_rule_limits_the_pace(config: Config) -> None:
    """It must not wind up, and there is no surge afterwards."""
    plant = Plant(config)
    plant.gpu_state = replace(GPU_STATE, health_pace=0.1)
    plant.run(60)
    assert plant.sent == [0.1]
    plant.gpu_state = replace(plant.gpu_state, health_pace=1.0)
    plant.run(40)
    assert max(plant.sent) <= 0.52
    assert plant.share == pytest.approx(0.5, abs=0.02)


def test_of_two_targets_the_lower_pace_applies() -> None:
    for power, share in ((160.0, 0.1), (600.0, 0.5)):
        plant = Plant(Config(util=0.5, power=power))
        plant.run(60)
        assert plant.share == pytest.approx(share, abs=0.02)


# --- several rules ---------------------------------------------------------------------------


@given(
    health=st.sampled_from([1.0, 0.8, 0.5, 0.0]),
    util=st.none() | st.floats(0.05, 1.0),
    power=st.none() | st.floats(10, 1000),
    elapsed=st.floats(0, 1e5),
    duty=st.none() | st.just(parse_duty("30m/5m")),
)
def test_the_lowest_share_applies(
    health: float, util: float | None, power: float | None, elapsed: float, duty: Duty | None
) -> None:
    config = Config(util=util, power=power, duty=duty)
    plant = Plant(config)
    plant.gpu_state = replace(GPU_STATE, health_pace=health)
    plant.now = BEGIN + elapsed
    plant.tick()
    rests = duty is not None and (elapsed + pace_controller.TIMER_SLACK_S) % 2100 >= 1800
    others = [] if util is None else [util]
    others += [] if power is None else [pace_controller.FIRST_FOR_POWER]
    assert plant.share == pytest.approx(
        0.0 if rests else min([health, *others]), abs=pace_controller.MIN_PACE_CHANGE
    )


def test_health_limits_the_pace_without_a_change_of_the_target() -> None:
    plant = Plant(Config(util=0.7))
    for health, share in ((1.0, 0.7), (0.5, 0.5), (0.0, 0.0), (0.8, 0.7)):
        plant.gpu_state = replace(plant.gpu_state, health_pace=health)
        plant.run(20)
        assert plant.share == pytest.approx(share, abs=0.01)


def test_a_duty_cycle_changes_at_its_deadline() -> None:
    plant = Plant(Config(duty=parse_duty("10s/3s")))
    plant.tick()
    turns: list[tuple[float, float]] = []
    while len(turns) < 5:
        assert plant.due > plant.now
        plant.now = plant.due
        plant.tick()
        turns.append((plant.now - BEGIN, plant.share))
    assert turns == [(10, 0.0), (13, 1.0), (23, 0.0), (26, 1.0), (36, 0.0)]


def test_no_samples_are_taken_during_a_rest() -> None:
    plant = Plant(Config(util=0.5, duty=parse_duty("20s/20s")))
    plant.run(75)
    assert plant.sent == [0.5, 0.0, 0.5, 0.0]


# --- in the supervisor -----------------------------------------------------------------------


def holding(config: Config) -> World:
    world = World(config=config)
    world.run(lambda: isinstance(world.gpu_state().stressor, Running))
    return world


def test_a_child_receives_its_pace_in_the_tick_of_its_ready() -> None:
    world = holding(Config(util=0.4, rearm=1.0))
    assert world.spawner.paced == [("GPU-0", 1, 0.4)]
    (event,) = world.events("stressor.pace")
    assert event.fields == {
        "util_target": 0.4,
        "power_target_w": None,
        "rests": False,
        "health": 1.0,
        "share": 0.4,
    }


def test_the_utilization_of_a_held_gpu_is_read_for_a_target() -> None:
    world = holding(Config(util=0.4, rearm=1.0, status_every=1.0))
    world.at(0).utilization = 0.8
    world.run(lambda: len(world.spawner.paced) > 1, within=10)
    assert world.spawner.paced[-1][2] == pytest.approx(0.2)
    world.run_for(1.5)
    status = world.events("gpu.status")[-1].fields
    assert (status["utilization"], status["util_target"]) == (0.8, 0.4)
    assert status["share"] == world.spawner.paced[-1][2]
    assert len(world.events("stressor.pace")) == 1, "a correction is no new target"
    assert not_none(world.probe.watched).load == ("GPU-0",)


def test_the_utilization_is_not_read_without_a_target() -> None:
    world = holding(Config(power=400.0, rearm=1.0))
    world.run_for(3)
    assert not_none(world.probe.watched).load == ()


def test_a_yielding_stressor_receives_no_pace_and_the_next_starts_over() -> None:
    world = holding(Config(util=0.4, rearm=1.0))
    newcomer = world.newcomer(0)
    world.run(lambda: world.events("gpu.handed_over"), within=3)
    world.at(0).foreign.remove(newcomer)
    world.run(lambda: len(world.events("stressor.ready")) == 2)
    assert world.spawner.paced == [("GPU-0", 1, 0.4), ("GPU-0", 2, 0.4)]


def test_the_supervisor_wakes_for_a_change_of_the_duty_cycle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Config, "stale_after", 1e6)
    duty = parse_duty("7.3s/2.1s")  # not with a lease, each half second, by coincidence
    world = holding(Config(duty=duty, rearm=1.0, hang_after=3600.0))
    world.tick = 100.0  # no limit on a wait
    since = world.gpu_state().stressor
    assert isinstance(since, Running)
    world.run(lambda: len(world.events("stressor.pace")) >= 2, within=30)
    assert [event.fields["rests"] for event in world.events("stressor.pace")] == [True, False]
    assert [round(e.at - since.since, 3) for e in world.events("stressor.pace")] == [7.3, 9.4]
