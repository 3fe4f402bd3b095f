"""How a GPU does, by its temperature and by the memory on it that is not ours. Pure.

Worse is believed at once; better only with a margin, and not before its time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentinel.config.model import Config
from sentinel.core.actions import Event
from sentinel.core.events import gpu_event
from sentinel.core.gpu.memory_accounting import foreign_memory
from sentinel.core.identity import OwnChild
from sentinel.core.state import GpuState, HealthState, Unknown
from sentinel.protocol.gpu import Reading
from sentinel.protocol.views import GpuHealth

#: The share of its speed that each condition leaves to whoever works there: from the GPU Management
#: System's table of states.
MULTIPLIERS = {
    GpuHealth.OPTIMAL: 1.0,
    GpuHealth.NORMAL: 0.8,
    GpuHealth.THROTTLED: 0.5,
    GpuHealth.CRITICAL: 0.0,
}

_WORSE = tuple(GpuHealth)


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """In degrees Celsius and shares of the memory: below ``optimal`` a GPU is OPTIMAL, and so on.

    Above ``throttle`` and ``memory_critical`` it is CRITICAL, above ``critical`` it overheats.
    """

    optimal: float
    normal: float
    throttle: float
    critical: float
    memory_optimal: float
    memory_normal: float
    memory_critical: float


def thresholds(gpu_state: GpuState, config: Config) -> Thresholds:
    """Return what holds for a GPU: as it was set, but no higher than the device declares.

    It is CRITICAL above the most that it may have in operation at the latest, and overheats above
    the temperature at which it slows itself down.
    """
    told = gpu_state.telemetry
    maximum = told.maximum_c if told is not None else None
    slowdown = told.slowdown_c if told is not None else None
    most = min(one for one in (config.temp_throttle, maximum, slowdown) if one is not None)
    normal = min(config.temp_normal, most)
    return Thresholds(
        optimal=min(config.temp_optimal, normal),
        normal=normal,
        throttle=most,
        critical=config.temp_critical if slowdown is None else min(config.temp_critical, slowdown),
        memory_optimal=config.memory_optimal,
        memory_normal=config.memory_normal,
        memory_critical=config.memory_critical,
    )


def judge(
    gpu_state: GpuState, reading: Reading | None, now: float, config: Config, child: OwnChild | None
) -> tuple[GpuState, list[Event]]:
    """Return the slot with its condition by the latest reading, and the events if it is another.

    A GPU that cannot be read stays in the condition it was in, which nobody is shown meanwhile.
    """
    if reading is not None and reading.telemetry is not None:
        gpu_state = replace(gpu_state, telemetry=reading.telemetry)
    if isinstance(gpu_state.occupancy, Unknown) or reading is None or reading.memory is None:
        return gpu_state, []
    limits = thresholds(gpu_state, config)
    share = foreign_memory(gpu_state, reading, child) / max(1, reading.memory.total)
    degrees = reading.temperature
    before = gpu_state.health or _first(now)
    health = _judged(before, degrees, share, limits, now, config)
    found = health.level
    pace = MULTIPLIERS[found] if config.throttle == "on" else 1.0
    if health == gpu_state.health and pace == gpu_state.health_pace:
        return gpu_state, []
    gpu_state = replace(gpu_state, health=health, health_pace=pace)
    seen = {"temperature_c": degrees, "memory_foreign_share": round(share, 4)}
    events = []
    if found is not before.level:
        fields = {"before": before.level.value, "health": found.value, **seen}
        events.append(
            gpu_event("gpu.health_changed", gpu_state, now, **fields, multiplier=MULTIPLIERS[found])
        )
    if health.overheats and not before.overheats:
        fields = {"temperature_c": degrees, "limit_c": limits.critical}
        events.append(gpu_event("gpu.overheat", gpu_state, now, **fields))
    return gpu_state, events


def multiplier(gpu_state: GpuState) -> float:
    """Return the share of its speed that a GPU leaves to a worker: none where it is unknown."""
    if gpu_state.health is None or isinstance(gpu_state.occupancy, Unknown):
        return 0.0
    return MULTIPLIERS[gpu_state.health.level]


def _first(now: float) -> HealthState:
    """Return that of a GPU of which nothing is known yet."""
    best = GpuHealth.OPTIMAL
    return HealthState(level=best, since=now, heat=best, heat_since=now, memory=best)


def _judged(
    before: HealthState,
    degrees: float | None,
    share: float,
    limits: Thresholds,
    now: float,
    config: Config,
) -> HealthState:
    """Return what follows for a GPU from its temperature, where that is told, and its memory."""
    told_at = before.told_at if degrees is None else now
    if degrees is not None:
        heat = _heat(before, degrees, limits, now, config)
    else:
        # A sensor may miss a beat; one that is silent for longer says nothing any more.
        heat = before.heat if now - told_at <= config.stale_after else GpuHealth.OPTIMAL
    memory = _memory(share, limits)
    if _rank(memory) < _rank(before.memory):
        memory = min(_memory(share + config.hysteresis / 100, limits), before.memory, key=_rank)
    found = max(heat, memory, key=_rank)
    return HealthState(
        level=found,
        since=before.since if found is before.level else now,
        heat=heat,
        heat_since=before.heat_since if heat is before.heat else now,
        memory=memory,
        told_at=told_at,
        overheats=_overheats(before, degrees, limits, config),
    )


def _heat(
    before: HealthState, degrees: float, limits: Thresholds, now: float, config: Config
) -> GpuHealth:
    """Return what a temperature says: worse at once, better with a margin and in time.

    Only heat has to wait: a card cools slowly, and memory that is given back is back.
    """

    def level(value: float) -> GpuHealth:
        return _WORSE[_level(value, limits.optimal, limits.normal, limits.throttle)]

    found = level(degrees)
    if _rank(found) >= _rank(before.heat):
        return found
    held = {GpuHealth.THROTTLED: config.cooldown, GpuHealth.CRITICAL: config.critical_pause}
    if now < before.heat_since + held.get(before.heat, 0.0):
        return before.heat
    return min(level(degrees + config.hysteresis), before.heat, key=_rank)


def _memory(share: float, limits: Thresholds) -> GpuHealth:
    levels = limits.memory_optimal, limits.memory_normal, limits.memory_critical
    return _WORSE[_level(share, *levels)]


def _rank(condition: GpuHealth) -> int:
    return _WORSE.index(condition)


def _level(value: float, optimal: float, normal: float, throttle: float) -> int:
    """Return how bad a value is, from 0 to 3."""
    if value > throttle:
        return 3
    return (value >= optimal) + (value >= normal)


def _overheats(
    before: HealthState, degrees: float | None, limits: Thresholds, config: Config
) -> bool:
    """Return whether it is too hot, or was and is not cooler than that by the margin."""
    if degrees is None:
        return before.overheats
    margin = config.hysteresis if before.overheats else 0.0
    return degrees > limits.critical - margin
