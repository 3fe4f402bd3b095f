"""The rules over all GPUs: which of them may be started on now, and which must be let go. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sentinel.config.model import Config
from sentinel.core.gpu import allocations, newcomer, occupancy
from sentinel.core.gpu.occupancy import Verdict
from sentinel.core.node.admin import admin_hold
from sentinel.core.observation import Observation
from sentinel.core.state import GpuState, Idle, LaunchSpec, Running, Starting, State, Stopping
from sentinel.protocol.gpu import Reading
from sentinel.protocol.views import GpuHealth


@dataclass(frozen=True, kw_only=True)
class Release:
    """A GPU that our stressor must leave, and by which rule."""

    uuid: str
    reason: str


def verdicts(state: State, seen: Observation, config: Config) -> dict[str, Verdict]:
    """Return for each GPU whether a stressor may be started there now, and the rule that decides.

    What somebody asked for comes first. A rule over all GPUs speaks only where the GPU's own rules
    would let it start.
    """
    own = {
        uuid: _own_verdict(state, gpu_state, seen, config)
        for uuid, gpu_state in state.gpu_states.items()
    }
    forbidden = _forbidden(state, seen, config)
    if forbidden is None:
        return own
    return {uuid: forbidden if verdict.allowed else verdict for uuid, verdict in own.items()}


def _own_verdict(state: State, gpu_state: GpuState, seen: Observation, config: Config) -> Verdict:
    """Return whether this GPU's own rules let a stressor start there now."""
    keeps_off = admin_hold(state, gpu_state, seen.now)
    if keeps_off is not None:
        return Verdict.no(keeps_off.rule, keeps_off.reason)
    uuid = gpu_state.gpu.uuid
    own = config.of(uuid)
    verdict = occupancy.may_start(gpu_state, seen.readings.get(uuid), seen.now, own)
    if not verdict.allowed:
        return verdict
    critical = _critical(gpu_state, own)
    if critical is not None:
        return Verdict.no("throttle.pace", critical)
    crowd = (
        _crowd(gpu_state)
        or _settling(gpu_state, seen.now)
        or _full(gpu_state, seen.readings.get(uuid), own)
    )
    return verdict if crowd is None else Verdict.no("promised", crowd)


def _critical(gpu_state: GpuState, config: Config) -> str | None:
    """Return why a GPU's condition leaves nothing to a stressor, or ``None`` where it does."""
    if gpu_state.health is None or config.throttle != "on":
        return None
    if gpu_state.health.level is not GpuHealth.CRITICAL:
        return None
    return "its condition is critical: it is left alone until it has recovered"


def _crowd(gpu_state: GpuState) -> str | None:
    """Return why nothing of ours may be beside its guests, or ``None`` where it may."""
    if not gpu_state.allocations or allocations.can_be_told(gpu_state):
        return None
    return f"memory was promised to who cannot be told from others here ({_promises(gpu_state)})"


def _settling(gpu_state: GpuState, now: float) -> str | None:
    """Return that a guest has only just been promised memory, or ``None`` where it has not."""
    newest = max((promise.since for promise in gpu_state.allocations.values()), default=-math.inf)
    left = newest + allocations.SETTLING - now
    return f"memory was promised just now: left to it for {left:.1f} s" if left > 0 else None


def _smaller_than_need_be(gpu_state: GpuState, now: float) -> str | None:
    """Return that a stressor leaves out what nobody is promised any more, or ``None``."""
    if (
        gpu_state.left_out <= allocations.committed(gpu_state)
        or now < gpu_state.allocations_changed + allocations.CALM
    ):
        return None
    return "memory that it left out for guests is promised to nobody any more"


def _full(gpu_state: GpuState, reading: Reading | None, config: Config) -> str | None:
    """Return that what is promised leaves too little to a stressor, or ``None`` where it does not.

    One that could take not a chunk would open a context where a guest is to have memory.
    """
    if not gpu_state.allocations or reading is None or reading.memory is None:
        return None
    left = reading.memory.free - allocations.outstanding(gpu_state, reading) - config.reserve
    if left >= config.chunk + allocations.CONTEXT:
        return None
    return f"what was promised of its memory leaves too little ({_promises(gpu_state)})"


def _promises(gpu_state: GpuState) -> str:
    return ", ".join(gpu_state.allocations)


def launch_spec(config: Config) -> LaunchSpec:
    """Return what a stressor is started with, by what holds for its GPU."""
    return LaunchSpec(
        workload=config.workload,
        memory=config.memory,
        chunk=config.chunk,
        reserve=config.reserve,
        goldens=config.goldens,
    )


def releases(state: State, seen: Observation, config: Config) -> tuple[Release, ...]:
    """Return what must be let go because somebody said so, or by a rule over all GPUs."""
    asked = tuple(_asked(state, seen, config))
    leaving = {release.uuid for release in asked}
    return (
        *asked,
        *(one for one in _by_rule(state, seen, config) if one.uuid not in leaving),
    )


def _asked(state: State, seen: Observation, config: Config) -> Iterator[Release]:
    """Return what must be let go because somebody said so."""
    for uuid, gpu_state in state.gpu_states.items():
        if not isinstance(gpu_state.stressor, Starting | Running):
            continue
        keeps_off = admin_hold(state, gpu_state, seen.now)
        if keeps_off is not None:
            yield Release(uuid=uuid, reason=keeps_off.reason)
            continue
        why = _asked_of_one(gpu_state, seen.readings.get(uuid), seen.now, config.of(uuid))
        if why is not None:
            yield Release(uuid=uuid, reason=why)


def _asked_of_one(
    gpu_state: GpuState, reading: Reading | None, now: float, config: Config
) -> str | None:
    """Return why a stressor must go for what is wanted of its own GPU, or ``None``."""
    if gpu_state.launch_spec is not None and gpu_state.launch_spec != launch_spec(config):
        return "its settings have changed"
    why = _critical(gpu_state, config) or _crowd(gpu_state) or _smaller_than_need_be(gpu_state, now)
    if why is not None or reading is None or not gpu_state.allocations:
        return why
    # What grows and is not listed yet may be a guest that takes what is still to come for it.
    free_beside_stressor = newcomer.free_beside_stressor(gpu_state, reading, config)
    if (
        free_beside_stressor is not None
        and allocations.outstanding(gpu_state, reading) > free_beside_stressor
    ):
        return f"memory that it holds was promised ({_promises(gpu_state)})"
    return None


def _by_rule(state: State, seen: Observation, config: Config) -> tuple[Release, ...]:
    """Return what must be let go: all in quiet hours, else what others want to find idle.

    Of the latter, those that were started last go first.
    """
    missing = config.leave_idle - sum(map(_is_free, state.gpu_states.values()))
    hours = quiet(seen, config)
    live = [
        gpu_state
        for gpu_state in state.gpu_states.values()
        if isinstance(gpu_state.stressor, Starting | Running)
    ]
    live.sort(key=lambda gpu_state: (gpu_state.started, gpu_state.gpu.index), reverse=True)
    reason = hours or f"{_gpus(config.leave_idle)} must be left idle (limits.leave_idle)"
    leaving = live if hours else live[: max(0, missing)]
    return tuple(Release(uuid=gpu_state.gpu.uuid, reason=reason) for gpu_state in leaving)


def deadlines(state: State, seen: Observation, config: Config) -> list[float]:
    """Return when a rule may come to say something else, by the monotonic clock."""
    times = [
        promise.since + allocations.SETTLING
        for gpu_state in state.gpu_states.values()
        for promise in gpu_state.allocations.values()
    ]
    times += [
        gpu_state.allocations_changed + allocations.CALM
        for gpu_state in state.gpu_states.values()
        if gpu_state.left_out
    ]
    due = _next_start(state, config)
    if due is not None:
        times.append(due)
    if seen.local is not None and (config.quiet or config.until):
        # Hours and moments begin with a minute of the wall.
        times.append(seen.now + 60.0 - seen.local.second - seen.local.microsecond / 1e6)
    return times


def _next_start(state: State, config: Config) -> float | None:
    """Return when the rate of starts lets the next one be, ``None`` where it always does."""
    if config.starts_per_second is None or state.last_start is None:
        return None
    return state.last_start + 1.0 / config.starts_per_second


def quiet(seen: Observation, config: Config) -> str | None:
    """Return by which hours nothing may be held now; where the wall's clock is unknown, by all."""
    for hours in config.quiet:
        if seen.local is None or hours.contains(seen.local):
            return f"quiet hours: {hours.text}"
    return None


def _forbidden(state: State, seen: Observation, config: Config) -> Verdict | None:
    """Return why no stressor may be started on any GPU, or ``None``."""
    hours = quiet(seen, config)
    if hours is not None:
        return Verdict.no("quiet", hours)
    gpu_states = state.gpu_states.values()
    held = sum(
        isinstance(gpu_state.stressor, Starting | Running | Stopping) for gpu_state in gpu_states
    )
    if config.max_gpus is not None and held >= config.max_gpus:
        return Verdict.no("limits.gpus", f"{_gpus(held)} held already (limits.gpus)")
    if config.leave_idle and sum(map(_is_free, gpu_states)) <= config.leave_idle:
        return Verdict.no(
            "limits.leave_idle", f"{_gpus(config.leave_idle)} must be left idle (limits.leave_idle)"
        )
    if config.idle_gate == "all":
        for gpu_state in gpu_states:
            if not _is_ready(gpu_state, seen, config):
                return Verdict.no(
                    "idle.gate", f"not before GPU {gpu_state.gpu.index} is idle, too (idle.gate)"
                )
    due = _next_start(state, config)
    if due is not None and seen.now < due:
        return Verdict.no(
            "limits.starts_per_second",
            "another stressor was started just now (limits.starts_per_second)",
        )
    return None


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _is_free(gpu_state: GpuState) -> bool:
    """Return whether a GPU is idle, and nobody's, or about to be: its stressor leaves."""
    live = isinstance(gpu_state.stressor, Starting | Running)
    return isinstance(gpu_state.occupancy, Idle) and not live and not gpu_state.allocations


def _is_ready(gpu_state: GpuState, seen: Observation, config: Config) -> bool:
    """Return whether a GPU is ours, or could be as far as its occupancy goes."""
    if isinstance(gpu_state.stressor, Starting | Running):
        return True
    reading, own = seen.readings.get(gpu_state.gpu.uuid), config.of(gpu_state.gpu.uuid)
    return occupancy.idle_enough(gpu_state, reading, seen.now, own) is None
