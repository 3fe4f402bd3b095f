"""The rules over all GPUs: which of them may be started on now, and which must be let go. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sentinel.config.model import Config
from sentinel.core.gpu import allocations, newcomer, occupancy
from sentinel.core.gpu.occupancy import Verdict
from sentinel.core.node.admin import standing
from sentinel.core.observation import Observation
from sentinel.core.state import Idle, Running, Slot, Starting, State, Stopping, Terms
from sentinel.protocol.gpu import Reading
from sentinel.protocol.views import Condition


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
    own = {uuid: _own_verdict(state, slot, seen, config) for uuid, slot in state.slots.items()}
    forbidden = _forbidden(state, seen, config)
    if forbidden is None:
        return own
    return {uuid: forbidden if verdict.allowed else verdict for uuid, verdict in own.items()}


def _own_verdict(state: State, slot: Slot, seen: Observation, config: Config) -> Verdict:
    """Return whether this GPU's own rules let a stressor start there now."""
    keeps_off = standing(state, slot, seen.now)
    if keeps_off is not None:
        return Verdict.no(keeps_off.rule, keeps_off.reason)
    uuid = slot.gpu.uuid
    own = config.of(uuid)
    verdict = occupancy.may_start(slot, seen.readings.get(uuid), seen.now, own)
    if not verdict.allowed:
        return verdict
    critical = _critical(slot, own)
    if critical is not None:
        return Verdict.no("throttle.pace", critical)
    crowd = _crowd(slot) or _settling(slot, seen.now) or _full(slot, seen.readings.get(uuid), own)
    return verdict if crowd is None else Verdict.no("promised", crowd)


def _critical(slot: Slot, config: Config) -> str | None:
    """Return why a GPU's condition leaves nothing to a stressor, or ``None`` where it does."""
    if slot.judged is None or config.throttle != "on":
        return None
    if slot.judged.condition is not Condition.CRITICAL:
        return None
    return "its condition is critical: it is left alone until it has recovered"


def _crowd(slot: Slot) -> str | None:
    """Return why nothing of ours may be beside its guests, or ``None`` where it may."""
    if not slot.promises or allocations.can_be_told(slot):
        return None
    return f"memory was promised to who cannot be told from others here ({_promises(slot)})"


def _settling(slot: Slot, now: float) -> str | None:
    """Return that a guest has only just been promised memory, or ``None`` where it has not."""
    newest = max((promise.since for promise in slot.promises.values()), default=-math.inf)
    left = newest + allocations.SETTLING - now
    return f"memory was promised just now: left to it for {left:.1f} s" if left > 0 else None


def _smaller_than_need_be(slot: Slot, now: float) -> str | None:
    """Return that a stressor leaves out what nobody is promised any more, or ``None``."""
    if (
        slot.left_out <= allocations.promised(slot)
        or now < slot.promises_changed + allocations.CALM
    ):
        return None
    return "memory that it left out for guests is promised to nobody any more"


def _full(slot: Slot, reading: Reading | None, config: Config) -> str | None:
    """Return that what is promised leaves too little to a stressor, or ``None`` where it does not.

    One that could take not a chunk would open a context where a guest is to have memory.
    """
    if not slot.promises or reading is None or reading.memory is None:
        return None
    left = reading.memory.free - allocations.to_come(slot, reading) - config.reserve
    if left >= config.chunk + allocations.CONTEXT:
        return None
    return f"what was promised of its memory leaves too little ({_promises(slot)})"


def _promises(slot: Slot) -> str:
    return ", ".join(slot.promises)


def terms(config: Config) -> Terms:
    """Return what a stressor is started with, by what holds for its GPU."""
    return Terms(
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
    for uuid, slot in state.slots.items():
        if not isinstance(slot.stressor, Starting | Running):
            continue
        keeps_off = standing(state, slot, seen.now)
        if keeps_off is not None:
            yield Release(uuid=uuid, reason=keeps_off.reason)
            continue
        why = _asked_of_one(slot, seen.readings.get(uuid), seen.now, config.of(uuid))
        if why is not None:
            yield Release(uuid=uuid, reason=why)


def _asked_of_one(slot: Slot, reading: Reading | None, now: float, config: Config) -> str | None:
    """Return why a stressor must go for what is wanted of its own GPU, or ``None``."""
    if slot.terms is not None and slot.terms != terms(config):
        return "its settings have changed"
    why = _critical(slot, config) or _crowd(slot) or _smaller_than_need_be(slot, now)
    if why is not None or reading is None or not slot.promises:
        return why
    # What grows and is not listed yet may be a guest that takes what is still to come for it.
    room = newcomer.room(slot, reading, config)
    if room is not None and allocations.to_come(slot, reading) > room:
        return f"memory that it holds was promised ({_promises(slot)})"
    return None


def _by_rule(state: State, seen: Observation, config: Config) -> tuple[Release, ...]:
    """Return what must be let go: all in quiet hours, else what others want to find idle.

    Of the latter, those that were started last go first.
    """
    missing = config.leave_idle - sum(map(_is_free, state.slots.values()))
    hours = quiet(seen, config)
    live = [slot for slot in state.slots.values() if isinstance(slot.stressor, Starting | Running)]
    live.sort(key=lambda slot: (slot.started, slot.gpu.index), reverse=True)
    reason = hours or f"{_gpus(config.leave_idle)} must be left idle (limits.leave_idle)"
    leaving = live if hours else live[: max(0, missing)]
    return tuple(Release(uuid=slot.gpu.uuid, reason=reason) for slot in leaving)


def deadlines(state: State, seen: Observation, config: Config) -> list[float]:
    """Return when a rule may come to say something else, by the monotonic clock."""
    times = [
        promise.since + allocations.SETTLING
        for slot in state.slots.values()
        for promise in slot.promises.values()
    ]
    times += [
        slot.promises_changed + allocations.CALM for slot in state.slots.values() if slot.left_out
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
        if seen.local is None or hours.hold(seen.local):
            return f"quiet hours: {hours.text}"
    return None


def _forbidden(state: State, seen: Observation, config: Config) -> Verdict | None:
    """Return why no stressor may be started on any GPU, or ``None``."""
    hours = quiet(seen, config)
    if hours is not None:
        return Verdict.no("quiet", hours)
    slots = state.slots.values()
    held = sum(isinstance(slot.stressor, Starting | Running | Stopping) for slot in slots)
    if config.max_gpus is not None and held >= config.max_gpus:
        return Verdict.no("limits.gpus", f"{_gpus(held)} held already (limits.gpus)")
    if config.leave_idle and sum(map(_is_free, slots)) <= config.leave_idle:
        return Verdict.no(
            "limits.leave_idle", f"{_gpus(config.leave_idle)} must be left idle (limits.leave_idle)"
        )
    if config.idle_gate == "all":
        for slot in slots:
            if not _is_ready(slot, seen, config):
                return Verdict.no(
                    "idle.gate", f"not before GPU {slot.gpu.index} is idle, too (idle.gate)"
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


def _is_free(slot: Slot) -> bool:
    """Return whether a GPU is idle, and nobody's, or about to be: its stressor leaves."""
    live = isinstance(slot.stressor, Starting | Running)
    return isinstance(slot.occupancy, Idle) and not live and not slot.promises


def _is_ready(slot: Slot, seen: Observation, config: Config) -> bool:
    """Return whether a GPU is ours, or could be as far as its occupancy goes."""
    if isinstance(slot.stressor, Starting | Running):
        return True
    reading, own = seen.readings.get(slot.gpu.uuid), config.of(slot.gpu.uuid)
    return occupancy.idle_enough(slot, reading, seen.now, own) is None
