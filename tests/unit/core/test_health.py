"""Health: thresholds, recovery, and its effect on a stressor."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.build import build_config
from sentinel.config.model import Config
from sentinel.core import faults
from sentinel.core.attribution import foreign_memory
from sentinel.core.gpu_state import (
    Busy,
    Findings,
    GpuState,
    HealthState,
    Idle,
    Running,
    Starting,
    Stopped,
    Unknown,
)
from sentinel.core.health import assess, cause, multiplier, thresholds
from sentinel.core.observation import Observation
from sentinel.core.step import Step
from sentinel.errors import ConfigError
from sentinel.protocol.commands import Given
from sentinel.protocol.gpu import Gpu, Memory, Reading, Telemetry
from sentinel.protocol.stressor import Ready
from sentinel.protocol.views import MULTIPLIERS, GpuHealth, HealthCause
from tests.harness.core_scenarios import occupied
from tests.harness.narrowing import not_none
from tests.harness.world import GIB

OPTIMAL, NORMAL, THROTTLED, CRITICAL = GpuHealth
GPU = Gpu(uuid="GPU-0", index=0, name="Fake", pci_bus_id="0", memory_total=100 * GIB)
#: The table of the GPU Management System, with its column for memory.
FULL = Config(throttle="full")
NOT_FULL = st.sampled_from(("critical", "off"))
GPU_STATE = GpuState(gpu=GPU, occupancy=Idle(since=0.0))


def reading(degrees: int | None = None, share: float = 0.0, at: float = 0.0) -> Reading:
    used = round(share * 100 * GIB)
    memory = Memory(total=100 * GIB, used=used, free=100 * GIB - used)
    return Reading(uuid="GPU-0", at=at, memory=memory, processes=(), temperature=degrees)


def health(gpu_state: GpuState, seen: Reading, config: Config = FULL) -> GpuState:
    return assessed(gpu_state, seen, config).state


def assessed(gpu_state: GpuState, seen: Reading, config: Config = FULL) -> Step[GpuState]:
    observation = Observation(now=seen.at, readings={"GPU-0": seen})
    known = faults.update(gpu_state, observation, config).state
    return assess(known, observation, config)


def level(gpu_state: GpuState) -> GpuHealth:
    return not_none(gpu_state.health).level


def health_since(level: GpuHealth, since: float = 0.0) -> GpuState:
    health = HealthState(level=level, since=since, heat=level, heat_since=since, memory=OPTIMAL)
    return replace(GPU_STATE, health=health)


@pytest.mark.parametrize(
    ("degrees", "share", "expected"),
    [
        (None, 0.0, OPTIMAL),
        (64, 0.69, OPTIMAL),
        (65, 0.0, NORMAL),
        (20, 0.70, NORMAL),
        (74, 0.84, NORMAL),
        (75, 0.0, THROTTLED),
        (85, 0.95, THROTTLED),
        (None, 0.85, THROTTLED),
        (86, 0.0, CRITICAL),
        (20, 0.96, CRITICAL),
        (None, 0.96, CRITICAL),
        (76, 0.71, THROTTLED),
    ],
)
def test_full_throttling_has_the_documented_table(
    degrees: int | None, share: float, expected: GpuHealth
) -> None:
    assert level(health(GPU_STATE, reading(degrees, share))) is expected


@given(share=st.floats(0, 1), degrees=st.none() | st.integers(0, 120), throttle=NOT_FULL)
def test_a_full_card_is_no_alarm(share: float, degrees: int | None, throttle: str) -> None:
    config = Config(throttle=throttle)
    full = health(GPU_STATE, reading(degrees, share), config)
    empty = health(GPU_STATE, reading(degrees, 0.0), config)
    assert full.health == empty.health
    assert multiplier(full) == multiplier(empty)


@given(
    share=st.floats(0, 1),
    degrees=st.integers(0, 120),
    throttle=st.sampled_from(("critical", "full", "off")),
    foreign=st.booleans(),
)
def test_the_multiplier_of_a_gpu_without_a_stressor_concerns_heat_only(
    share: float, degrees: int, throttle: str, *, foreign: bool
) -> None:
    state = GPU_STATE
    if foreign:
        state = replace(state, occupancy=Busy(rule="processes", reason="a job"))
    judged = health(state, reading(degrees, share), Config(throttle=throttle))
    assert multiplier(judged) == MULTIPLIERS[by_heat(degrees)]


def by_heat(degrees: int) -> GpuHealth:
    limits = thresholds(GPU_STATE, Config())
    if degrees > limits.throttle:
        return CRITICAL
    return (OPTIMAL, NORMAL, THROTTLED)[(degrees >= limits.optimal) + (degrees >= limits.normal)]


REMAP_FAILED = Telemetry(at=0.0, remap_failed=True)
BRAKE = Telemetry(at=0.0, reasons=("hw_slowdown", "hw_power_brake_slowdown"))


@pytest.mark.parametrize(
    ("degrees", "share", "telemetry", "found", "expected", "why"),
    [
        (40, 0.1, None, 0, OPTIMAL, None),
        (66, 0.1, None, 0, NORMAL, HealthCause.TEMPERATURE),
        (40, 0.97, None, 0, CRITICAL, HealthCause.MEMORY),
        (76, 0.75, None, 0, THROTTLED, HealthCause.TEMPERATURE),
        (66, 0.90, None, 0, THROTTLED, HealthCause.MEMORY),
        (90, 0.97, None, 0, CRITICAL, HealthCause.TEMPERATURE),
        (40, 0.1, REMAP_FAILED, 0, CRITICAL, HealthCause.HARDWARE),
        (90, 0.97, REMAP_FAILED, 0, CRITICAL, HealthCause.HARDWARE),
        (40, 0.1, BRAKE, 0, THROTTLED, HealthCause.HARDWARE),
        (90, 0.1, BRAKE, 0, CRITICAL, HealthCause.TEMPERATURE),
        (40, 0.1, None, 1, CRITICAL, HealthCause.HARDWARE),
        (None, 0.1, Telemetry(at=0.0, remap_failed=None), 0, OPTIMAL, None),
    ],
)
def test_health_has_a_cause(
    degrees: int | None,
    share: float,
    telemetry: Telemetry | None,
    found: int,
    expected: GpuHealth,
    why: HealthCause | None,
) -> None:
    state = replace(GPU_STATE, findings=Findings(total=found))
    seen = replace(reading(degrees, share), telemetry=telemetry)
    step = assessed(state, seen)
    judged = not_none(step.state.health)
    assert (judged.level, cause(judged)) == (expected, why)
    assert [event.fields["cause"] for event in step.events] == ([why] if why else [])


@pytest.mark.parametrize("throttle", ["critical", "full"])
def test_failing_hardware_is_reported_and_stops_no_work(throttle: str) -> None:
    world = occupied(config=Config(throttle=throttle))
    world.at(0).telemetry = REMAP_FAILED
    world.run_for(5.0)
    gpu_state = world.gpu_state()
    assert level(gpu_state) is CRITICAL
    assert isinstance(gpu_state.stressor, Running)
    assert (multiplier(gpu_state), world.spawner.paced) == (1.0, [])


def test_beside_a_stressor_foreign_memory_limits_the_speed_with_full_throttling() -> None:
    ready = Ready(held=4 * GIB, asked=4 * GIB, chunks=1, refused=False)
    running = Running(
        since=0.0,
        ready=ready,
        last_progress=0.0,
    )
    beside = replace(GPU_STATE, stressor=running)
    assert multiplier(health(beside, reading(40, 0.9))) == 0.5
    assert multiplier(health(beside, reading(40, 0.9), Config())) == 1.0


def test_only_foreign_memory_counts() -> None:
    world = occupied(config=FULL)
    gpu_state = world.gpu_state()
    assert world.at(0).used > 0.85 * world.at(0).gpu.memory_total
    assert level(gpu_state) is OPTIMAL


def test_memory_that_a_stressor_takes_after_its_process_was_listed_is_not_foreign() -> None:
    world = occupied(config=FULL)
    gpu_state = world.gpu_state()
    (own,) = gpu_state.attribution.own
    early = replace(gpu_state.attribution, own_memory=GIB)
    other = replace(own, pid=own.pid + 1, memory=20 * GIB)
    held, baseline = 90 * GIB, gpu_state.launch.baseline
    running = Running(
        since=0.0,
        ready=Ready(held=held, asked=held, chunks=1, refused=False),
        last_progress=0.0,
        expected=baseline + held,
    )
    for stressor in (Starting(since=0.0), running, replace(running, expected=None)):
        state = replace(gpu_state, stressor=stressor, attribution=early)
        seen = replace(reading(share=0.9), processes=(own,))
        assert foreign_memory(state, seen) == baseline
        beside = replace(reading(share=0.98), processes=(own, other))
        more = 20 * GIB if isinstance(stressor, Starting) else 8 * GIB
        assert foreign_memory(state, beside) == baseline + more


@pytest.mark.parametrize(
    ("before", "seconds", "degrees", "expected"),
    [
        (NORMAL, 0.0, 64, NORMAL),  # not by the margin
        (NORMAL, 0.0, 62, OPTIMAL),
        (THROTTLED, 29.9, 40, THROTTLED),  # not before its time
        (THROTTLED, 30.0, 40, OPTIMAL),
        (THROTTLED, 30.0, 74, THROTTLED),
        (THROTTLED, 30.0, 72, NORMAL),
        (CRITICAL, 59.9, 40, CRITICAL),
        (CRITICAL, 60.0, 84, CRITICAL),
        (CRITICAL, 60.0, 80, THROTTLED),
        (CRITICAL, 60.0, 40, OPTIMAL),
        (OPTIMAL, 0.0, 86, CRITICAL),  # worse applies at once
        (THROTTLED, 0.0, 86, CRITICAL),
    ],
)
def test_health_improves_with_a_margin_and_after_a_cool_down(
    before: GpuHealth, seconds: float, degrees: int, expected: GpuHealth
) -> None:
    assert level(health(health_since(before), reading(degrees, at=seconds))) is expected


def test_health_by_memory_improves_at_once_with_a_margin() -> None:
    gpu_state = health(GPU_STATE, reading(30, 0.97))
    assert level(gpu_state) is CRITICAL
    assert level(health(gpu_state, reading(30, 0.94, at=0.1))) is CRITICAL
    assert level(health(gpu_state, reading(30, 0.92, at=0.1))) is THROTTLED
    assert level(health(gpu_state, reading(30, 0.0, at=0.1))) is OPTIMAL


@given(
    before=st.sampled_from(GpuHealth),
    degrees=st.none() | st.integers(0, 120),
    share=st.floats(0, 1),
    seconds=st.floats(0, 200),
)
def test_health_is_never_better_than_the_table(
    before: GpuHealth, degrees: int | None, share: float, seconds: float
) -> None:
    at_once = level(health(GPU_STATE, reading(degrees, share)))
    later = level(health(health_since(before), reading(degrees, share, at=seconds)))
    assert MULTIPLIERS[later] <= MULTIPLIERS[at_once]
    worst = min(MULTIPLIERS[before], MULTIPLIERS[at_once])
    assert MULTIPLIERS[later] >= worst  # and not worse than before or now


@pytest.mark.parametrize(
    ("maximum", "slowdown", "expected"),
    [(None, None, (65, 75, 85, 90)), (87, 89, (65, 75, 85, 89)), (70, 74, (65, 70, 70, 74))],
)
def test_no_threshold_is_above_what_the_device_declares(
    maximum: int | None, slowdown: int | None, expected: tuple[float, ...]
) -> None:
    telemetry = Telemetry(at=0.0, maximum_c=maximum, slowdown_c=slowdown)
    found = thresholds(replace(GPU_STATE, telemetry=telemetry), FULL)
    assert (found.optimal, found.normal, found.throttle, found.critical) == expected


def test_an_unreadable_gpu_allows_no_load_and_keeps_its_level() -> None:
    gpu_state = health(GPU_STATE, reading(76))
    assert multiplier(gpu_state) == 0.5
    lost = replace(gpu_state, occupancy=Unknown(reason="a test"))
    assert multiplier(health(lost, reading(20))) == 0.0
    assert health(lost, reading(20)).health == gpu_state.health
    assert multiplier(GPU_STATE) == 0.0


def test_the_latest_telemetry_counts_until_there_is_newer() -> None:
    first, second = Telemetry(at=0.0, slowdown_c=89), Telemetry(at=1.0, slowdown_c=85)
    state = health(GPU_STATE, replace(reading(20), telemetry=first))
    assert health(state, reading(20)).telemetry == first
    assert health(state, replace(reading(20), telemetry=second)).telemetry == second


def test_an_old_temperature_does_not_count() -> None:
    gpu_state = health(GPU_STATE, reading(95, at=0.0))
    missed_a_beat = health(gpu_state, reading(None, at=3.0))
    assert level(missed_a_beat) is CRITICAL
    assert level(health(missed_a_beat, reading(None, at=10.0))) is OPTIMAL
    assert level(health(missed_a_beat, reading(None, 0.9, at=10.0))) is THROTTLED


@pytest.mark.parametrize("degrees", [151, 255, 2**32 - 1])
def test_a_temperature_that_no_gpu_has_is_none(degrees: int) -> None:
    gpu_state = health(GPU_STATE, reading(40, at=0.0))
    assert level(health(gpu_state, reading(degrees, at=1.0))) is OPTIMAL
    hot = health(gpu_state, reading(95, at=1.0))
    assert level(health(hot, reading(degrees, at=2.0))) is CRITICAL


def test_overheating_is_reported_once_until_the_gpu_cools_down() -> None:
    reported_at = []
    gpu_state = GPU_STATE
    for at, degrees in enumerate((80, 91, 92, 89, 91, 87, 91)):
        step = assessed(gpu_state, reading(degrees, at=float(at)), Config())
        gpu_state = step.state
        reported_at += [at for event in step.events if event.name == "gpu.overheat"]
    assert reported_at == [1, 6]


@pytest.mark.parametrize(
    ("degrees", "share"), [(40, 1.0), (70, 0.8), (80, 0.5)], ids=["cool", "warm", "hot"]
)
def test_health_limits_the_pace_of_a_stressor(degrees: int, share: float) -> None:
    world = occupied(config=Config(throttle="full"))
    world.at(0).temperature = degrees
    world.run_for(1.0)
    assert world.spawner.paced[-1:] == ([("GPU-0", 1, share)] if share < 1.0 else [])


def test_a_critical_gpu_is_released_and_occupied_again_after_recovery() -> None:
    config = Config(throttle="full", cooldown=1.0, critical_pause=10.0, rearm=1.0)
    world = occupied(config=config)
    world.at(0).temperature = 90
    world.run(lambda: isinstance(world.gpu_state().stressor, Stopped))
    (released,) = world.events("gpu.released")
    assert "critical" in str(released.fields["reason"])
    assert released.fields["temperature_c"] == 90
    world.at(0).temperature = 40
    hot_until = world.events("gpu.health_changed")[-1].at + 10.0
    world.run(lambda: isinstance(world.gpu_state().stressor, Running))
    assert world.spawner.started[-1][1] >= hot_until
    changes = [
        (event.fields["before"], event.fields["health"])
        for event in world.events("gpu.health_changed")
    ]
    assert changes == [("optimal", "critical"), ("critical", "optimal")]


def test_each_gpu_has_its_own_health() -> None:
    world = occupied(gpus=2)
    world.at(1).temperature = 95
    world.run(lambda: isinstance(world.gpu_state(1).stressor, Stopped))
    assert isinstance(world.gpu_state(0).stressor, Running)


@pytest.mark.parametrize(("throttle", "degrees"), [("critical", (66, 76, 86)), ("off", (95,))])
def test_heat_that_does_not_throttle_is_reported_and_the_pace_is_full(
    throttle: str, degrees: tuple[int, ...]
) -> None:
    world = occupied(config=Config(throttle=throttle))
    for temperature in degrees:
        world.at(0).temperature = temperature
        world.run_for(5.0)
    assert level(world.gpu_state()) is CRITICAL
    assert isinstance(world.gpu_state().stressor, Running)
    assert not world.spawner.paced


@pytest.mark.parametrize(("limit", "declares"), [(87, True), (90, False)])
def test_a_stressor_stops_at_the_limit_of_the_device_until_that_has_recovered(
    limit: int, *, declares: bool
) -> None:
    world = occupied(config=Config(critical_pause=10.0, rearm=1.0))
    if declares:
        world.at(0).telemetry = Telemetry(at=0.0, maximum_c=87, slowdown_c=89)
    world.at(0).temperature = limit
    world.run_for(5.0)
    assert isinstance(world.gpu_state().stressor, Running)
    world.at(0).temperature = limit + 1
    world.run(lambda: isinstance(world.gpu_state().stressor, Stopped))
    world.at(0).temperature = 84
    world.run_for(30.0)
    assert isinstance(world.gpu_state().stressor, Stopped), "cooler by less than the margin"
    world.at(0).temperature = 80
    world.run(lambda: isinstance(world.gpu_state().stressor, Running))


@pytest.mark.parametrize(
    ("key", "text", "named"),
    [
        (
            "throttle.temp_throttled_from",
            "65",
            "throttle.temp_normal_from must be below throttle.temp_throttled_from",
        ),
        (
            "throttle.temp_overheating_from",
            "80",
            "temp_critical_from must be below throttle.temp_overheating_from",
        ),
        (
            "throttle.memory_throttled_from",
            "95.5%",
            "throttle.memory_throttled_from is 95.5% and throttle.memory_critical_from is 95%",
        ),
    ],
)
def test_thresholds_in_a_wrong_order_are_refused(key: str, text: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config([Given(key=key, text=text, source="--somewhere")])
    assert "--somewhere" in str(caught.value)
    assert named in str(caught.value)
