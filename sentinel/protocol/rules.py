"""The rules by which a GPU is occupied or not, and the word for its state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sentinel.units import format_duration

if TYPE_CHECKING:
    from sentinel.protocol.views import GpuFields


@dataclass(frozen=True)
class Rule:
    """One rule, which decides while none before it does."""

    #: The identifier in the status, in events and in `--json`; it stays the same.
    name: str
    #: While what it decides.
    text: str
    #: The time at which it may decide otherwise, as far as it is known beforehand.
    time: str = ""


#: The GPU has a stressor that works.
RUNNING = "running"
#: Nothing forbids a start.
IDLE = "idle"

_SETTING = "the [setting](configuration.md#when-a-gpu-is-occupied) of that name forbids it"

#: All rules, by name, in the order in which they decide.
RULES = {
    rule.name: rule
    for rule in (
        Rule(RUNNING, "a stressor is ready: the GPU is occupied"),
        Rule("starting", "a stressor is starting, and is not ready yet"),
        Rule("shutdown", "the daemon is ending"),
        Rule("released", "a client has released the driver (`pause --release`)", "its end"),
        Rule("reserved", "the GPU is reserved", "the end of the reservation"),
        Rule(
            "paused",
            "a client has paused the GPU, or the daemon was started with `--paused`",
            "the end of the pause",
        ),
        Rule(
            "unknown",
            "the GPU cannot be read",
            "the end of its exclusion after a driver call that hung or crashed, or the start of"
            " the next probe",
        ),
        Rule("exclusive", "its compute mode permits only one process, or none"),
        Rule("mig", "MIG is enabled"),
        Rule("display", 'a display is active on it, unless `yield_to = "compute"`'),
        Rule("process", "a foreign process is on it"),
        Rule(
            "leak",
            "its memory or the GPU is in use without a process since our stressor exited",
            "the next time that a context is opened and closed to clear it",
        ),
        Rule("idle.memory", _SETTING),
        Rule(
            "computing",
            "a process that is not listed computes on it; only where processes may be hidden",
        ),
        Rule("idle.utilization", _SETTING, "2 s after the last stressor"),
        Rule(
            "stopping",
            "our last stressor is ending, or its memory is not free yet",
            "the kill, or 5 s after the exit",
        ),
        Rule("backoff", "our last stressor failed, for the reason given", "the next start"),
        Rule("failed", "our stressors have failed for good, for the reason given"),
        Rule(
            "confirm",
            "only one reading showed it idle, or the last reading is older than 1.5 times"
            " `--poll`, at most 3 s",
        ),
        Rule("rearm", "the wait after a foreign process has not ended", "its end"),
        Rule("idle.wait", _SETTING, "its end"),
        Rule("memory.keep_free", "no more memory is free than that setting keeps free"),
        Rule("burnin", "the GPU has done its plan, or does no more of it"),
        Rule(
            "throttle.pace",
            "its [health](checks.md) is critical, and the setting of that name forbids work then",
            "the end of `throttle.critical_pause`",
        ),
        Rule(
            "allocations",
            "memory was just [allocated](checks.md#allocated-memory), or allocated to a process"
            " that cannot be told from others, or allocations leave too little of it",
            "3 s after an allocation",
        ),
        Rule(
            "burnin.together",
            "it waits for the other GPUs, to do a phase of a burn-in together",
        ),
        Rule("probe", "the process that reads the GPUs is being replaced", "its start"),
        Rule(
            "api",
            "a daemon cannot be reached: its API does not answer yet, or has not answered for 30 s",
        ),
        Rule("quiet", "the time is within these hours", "their end"),
        Rule("limits.gpus", "as many GPUs as that setting allows are held"),
        Rule("limits.leave_idle", "so many idle GPUs must be left as that setting says"),
        Rule("idle.gate", "another GPU is not idle yet, and that setting says `all`"),
        Rule(
            "limits.starts_per_second",
            "another stressor was started just now",
            "the next start that the setting allows",
        ),
        Rule(IDLE, "nothing: a stressor is started next, or `--dry-run` starts none"),
    )
}


def with_time(reason: str, left_s: float | None) -> str:
    """Add to the reason of a rule the time until it may decide otherwise.

    Args:
        reason: The reason as a sentence.
        left_s: That time in seconds, or None if it is not known.
    """
    if left_s is None:
        return reason
    return f"{reason}; may change in {format_duration(math.ceil(left_s))}"


_NOT_HELD = ("ENABLED", "RELEASED")
#: The states of a GPU in one word: the meaning of each, and the values of fields that it needs. The
#: first that fits is shown: of the stressor, of the pause or reservation, or of the occupancy.
GPU_STATES: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "occupied": ("a stressor is running", {"stressor": ("RUNNING",)}),
    "starting": ("a stressor is starting", {"stressor": ("STARTING",)}),
    "stopping": ("the stressor is ending", {"stressor": ("STOPPING",)}),
    "busy": ("used by a foreign process", {"admin": _NOT_HELD, "occupancy": ("BUSY",)}),
    "idle": (
        "not in use",
        {"admin": _NOT_HELD, "occupancy": ("IDLE",), "stressor": ("STOPPED",)},
    ),
    "reserved": ("kept free for a user", {"admin": ("RESERVED",)}),
    "paused": ("paused by an operator", {"admin": ("PAUSED",)}),
    "backoff": (
        "the stressor failed, and will be restarted",
        {"occupancy": ("IDLE",), "stressor": ("BACKOFF",)},
    ),
    "failed": (
        "the stressor failed, and will not be restarted",
        {"occupancy": ("IDLE",), "stressor": ("FATAL",)},
    ),
    "unknown": ("the occupancy is not known", {}),
}
#: The states with a stressor on the GPU.
WITH_STRESSOR = ("occupied", "starting", "stopping")


def gpu_state(gpu: GpuFields) -> str:
    """Choose the word for the state of a GPU from its fields, as the API has them."""
    return next(
        word
        for word, (_, needed) in GPU_STATES.items()
        if all(getattr(gpu, field) in values for field, values in needed.items())
    )
