"""Assess the health of a GPU by its temperature, its hardware and its foreign memory. Pure.

A worse level applies at once; a better one only with a margin and after a cool-down. Foreign memory
counts only with ``throttle.pace`` = ``full``: a job that fills its GPU is no fault of the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentinel.config.model import Config
from sentinel.core.attribution import foreign_memory
from sentinel.core.gpu_state import GpuState, HealthState, Unknown
from sentinel.core.observation import Observation
from sentinel.core.step import Step, gpu_event
from sentinel.protocol.gpu import HIGHEST_C
from sentinel.protocol.views import MULTIPLIERS, GpuHealth, HealthCause

#: NVML's reason for clocks that hardware outside the GPU, such as the power supply, has reduced "by
#: a factor of 2 or more" (nvml.h, nvmlClocksEventReasonHwPowerBrakeSlowdown).
_POWER_BRAKE = "hw_power_brake_slowdown"

_LEVELS = tuple(GpuHealth)


@dataclass(frozen=True, kw_only=True)
class HealthLimits:
    """The limits of the levels, in degrees Celsius and shares of the memory."""

    #: OPTIMAL below.
    optimal: float
    #: NORMAL below.
    normal: float
    #: CRITICAL above.
    throttle: float
    #: Overheating above.
    critical: float
    #: The device's own limit for operation.
    device: float
    #: OPTIMAL below.
    memory_optimal: float
    #: NORMAL below.
    memory_normal: float
    #: CRITICAL above.
    memory_critical: float


def thresholds(gpu_state: GpuState, config: Config) -> HealthLimits:
    """Return the configured limits, lowered to those that the device declares.

    A GPU is CRITICAL above its maximum operating temperature, and overheats above its slowdown
    temperature. The lower of the two is its own limit; one that declares neither has the configured
    ``temp_overheating_from``.
    """
    telemetry = gpu_state.telemetry
    maximum = telemetry.maximum_c if telemetry is not None else None
    slowdown = telemetry.slowdown_c if telemetry is not None else None
    device = _lower(maximum, slowdown)
    throttle = (
        config.temp_critical_from if device is None else min(config.temp_critical_from, device)
    )
    normal = min(config.temp_throttled_from, throttle)
    return HealthLimits(
        optimal=min(config.temp_normal_from, normal),
        normal=normal,
        throttle=throttle,
        critical=config.temp_overheating_from
        if slowdown is None
        else min(config.temp_overheating_from, slowdown),
        device=config.temp_overheating_from if device is None else device,
        memory_optimal=config.memory_normal_from,
        memory_normal=config.memory_throttled_from,
        memory_critical=config.memory_critical_from,
    )


def _lower(first: float | None, second: float | None) -> float | None:
    """Return the lower of two limits that may be undeclared."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def assess(gpu_state: GpuState, seen: Observation, config: Config) -> Step[GpuState]:
    """Update the health by the latest reading, and report a change.

    A GPU that cannot be read keeps its level, which is not published in the meantime.
    """
    reading, now = seen.readings.get(gpu_state.gpu.uuid), seen.now
    telemetry = reading.telemetry if reading is not None else None
    if telemetry is not None and telemetry is not gpu_state.telemetry:
        gpu_state = replace(gpu_state, telemetry=telemetry)
    if isinstance(gpu_state.occupancy, Unknown) or reading is None or reading.memory is None:
        return Step(gpu_state)
    limits = thresholds(gpu_state, config)
    share = foreign_memory(gpu_state, reading) / max(1, reading.memory.total)
    degrees = reading.temperature
    if degrees is not None and degrees > HIGHEST_C:
        degrees = None
    before = gpu_state.health or _initial(now)
    hardware = _hardware(gpu_state)
    health = _next(before, degrees, share, hardware, limits, now, config)
    level = health.level
    pace = MULTIPLIERS[_of_load(health)] if config.throttle == "full" else 1.0
    if health == gpu_state.health and pace == gpu_state.health_pace:
        return Step(gpu_state)
    gpu_state = replace(gpu_state, health=health, health_pace=pace)
    events = []
    if level is not before.level:
        why = cause(health)
        fields = {
            "before": before.level.value,
            "health": level.value,
            "cause": None if why is None else why.value,
            "temperature_c": degrees,
            "memory_foreign_share": round(share, 4),
            "multiplier": multiplier(gpu_state),
        }
        events.append(gpu_event("gpu.health_changed", gpu_state, now, **fields))
    if health.overheats and not before.overheats:
        fields = {"temperature_c": degrees, "limit_c": limits.critical}
        events.append(gpu_event("gpu.overheat", gpu_state, now, **fields))
    return Step(gpu_state, events=tuple(events))


def forbidding_cause(gpu_state: GpuState, config: Config) -> HealthCause | None:
    """Return why the health of a GPU forbids a stressor, or None if it does not."""
    health = gpu_state.health
    if health is None:
        return None
    by_heat = HealthCause.TEMPERATURE if health.heat is GpuHealth.CRITICAL else HealthCause.MEMORY
    match config.throttle:
        case "full" if _of_load(health) is GpuHealth.CRITICAL:
            return by_heat
        case "critical" if health.at_limit:
            return HealthCause.TEMPERATURE
        case _:
            return None


def recovery_at(gpu_state: GpuState, now: float, config: Config) -> float | None:
    """Compute when a GPU that is too hot may recover, if it has cooled; None if that is due."""
    if gpu_state.health is None or gpu_state.health.heat is not GpuHealth.CRITICAL:
        return None
    until = gpu_state.health.heat_since + config.critical_pause
    return until if until > now else None


def multiplier(gpu_state: GpuState) -> float:
    """Return the share of full speed that a GPU's health allows; 0 while it is unknown.

    A job does not become faster by slowing down because its own memory is full. So memory counts
    only for a GPU with a stressor, and heat for each. Less load repairs no hardware.
    """
    health = gpu_state.health
    if health is None or isinstance(gpu_state.occupancy, Unknown):
        return 0.0
    return MULTIPLIERS[_of_load(health) if gpu_state.is_held else health.heat]


def cause(health: HealthState) -> HealthCause | None:
    """Return the cause of the level, or None if health is OPTIMAL.

    Of causes with the same level, the one that most needs an operator: hardware, temperature,
    memory.
    """
    if health.level is GpuHealth.OPTIMAL:
        return None
    if health.level is health.hardware:
        return HealthCause.HARDWARE
    return HealthCause.TEMPERATURE if health.level is health.heat else HealthCause.MEMORY


def _of_load(health: HealthState) -> GpuHealth:
    """Return the worse level of those that less load improves: heat and memory."""
    return max(health.heat, health.memory, key=_rank)


def _hardware(gpu_state: GpuState) -> GpuHealth:
    """Return the level by what was proved or reported about the hardware.

    CRITICAL after a finding or with a known fault. THROTTLED while hardware outside the GPU slows
    it down.
    """
    telemetry = gpu_state.telemetry
    if gpu_state.findings.standing or gpu_state.faults:
        return GpuHealth.CRITICAL
    if telemetry is not None and _POWER_BRAKE in (telemetry.reasons or ()):
        return GpuHealth.THROTTLED
    return GpuHealth.OPTIMAL


def _initial(now: float) -> HealthState:
    """Return the health before the first reading."""
    best = GpuHealth.OPTIMAL
    return HealthState(level=best, since=now, heat=best, heat_since=now, memory=best)


def _next(
    before: HealthState,
    degrees: float | None,
    share: float,
    hardware: GpuHealth,
    limits: HealthLimits,
    now: float,
    config: Config,
) -> HealthState:
    """Compute the health from the temperature, if there is one, the hardware and the memory."""
    temperature_at = before.temperature_at if degrees is None else now
    if degrees is not None:
        heat = _heat(before, degrees, limits, now, config)
    else:
        # A sensor may miss a reading; after a longer gap its last value does not count.
        fresh = now - temperature_at <= config.stale_after
        heat = before.heat if fresh else GpuHealth.OPTIMAL
    memory = GpuHealth.OPTIMAL
    if config.throttle == "full":
        memory = _memory(share, limits)
        if _rank(memory) < _rank(before.memory):
            memory = min(_memory(share + config.hysteresis / 100, limits), before.memory, key=_rank)
    worse = max(heat, memory, hardware, key=_rank)
    return HealthState(
        level=worse,
        since=before.since if worse is before.level else now,
        heat=heat,
        heat_since=before.heat_since if heat is before.heat else now,
        memory=memory,
        hardware=hardware,
        temperature_at=temperature_at,
        overheats=_overheats(before, degrees, limits, config),
        # Until it has recovered, with the margin and the pause of that level.
        at_limit=heat is GpuHealth.CRITICAL
        and (before.at_limit or (degrees is not None and degrees > limits.device)),
    )


def _heat(
    before: HealthState, degrees: float, limits: HealthLimits, now: float, config: Config
) -> GpuHealth:
    """Compute the level by temperature: worse at once, better with a margin and a cool-down.

    Only temperature has a cool-down: a card cools slowly, and freed memory is free at once.
    """

    def level(value: float) -> GpuHealth:
        return _LEVELS[_level(value, limits.optimal, limits.normal, limits.throttle)]

    found = level(degrees)
    if _rank(found) >= _rank(before.heat):
        return found
    held = {GpuHealth.THROTTLED: config.cooldown, GpuHealth.CRITICAL: config.critical_pause}
    if now < before.heat_since + held.get(before.heat, 0.0):
        return before.heat
    return min(level(degrees + config.hysteresis), before.heat, key=_rank)


def _memory(share: float, limits: HealthLimits) -> GpuHealth:
    levels = limits.memory_optimal, limits.memory_normal, limits.memory_critical
    return _LEVELS[_level(share, *levels)]


def _rank(level: GpuHealth) -> int:
    return _LEVELS.index(level)


def _level(value: float, optimal: float, normal: float, throttle: float) -> int:
    """Rank a value from 0, best, to 3, worst."""
    if value > throttle:
        return 3
    return (value >= optimal) + (value >= normal)


def _overheats(
    before: HealthState, degrees: float | None, limits: HealthLimits, config: Config
) -> bool:
    """Check whether a GPU is too hot, or was and has not cooled down by the margin."""
    if degrees is None:
        return before.overheats
    margin = config.hysteresis if before.overheats else 0.0
    return degrees > limits.critical - margin
