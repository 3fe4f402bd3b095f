"""The rules by which a GPU is occupied or not, and the word for its state."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sentinel.units import format_duration

if TYPE_CHECKING:
    from sentinel.protocol.views import GpuFields

#: The GPU has a stressor that works.
RUNNING = "running"
#: Nothing forbids a start.
IDLE = "idle"

_SETTING = "that [setting](configuration.md#when-a-gpu-is-occupied) forbids it"

#: How a reason ends that has the time of day at which it does.
_AT = re.compile(r"[0-9]{2}:[0-9]{2}$")

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
#: The words of a known fault, which come before all states; the kinds of protocol/views.py.
FAULT_STATES: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "lost": ("the driver has lost it", {}),
    "xid": ("an XID of the driver means a hardware fault", {}),
    "recovery": ("the driver demands a reset, a reboot or the like", {}),
    "uncorrectable": ("its memory has uncorrectable errors", {}),
    "unread": ("its memory errors can no longer be counted", {}),
}
_WITH_STRESSOR = ("RUNNING", "STARTING", "STOPPING")


@dataclass(frozen=True)
class Rule:
    """One rule, which decides while none before it does."""

    #: The identifier in the status, in events and in `--json`; it stays the same.
    name: str
    #: While what it decides.
    text: str
    #: The time at which it may decide otherwise, as far as it is known beforehand.
    time: str = ""


#: All rules, by name, in the order in which they decide.
RULES = {
    rule.name: rule
    for rule in (
        Rule(RUNNING, "a stressor is ready: the GPU is occupied"),
        Rule("starting", "a stressor is starting"),
        Rule("shutdown", "the daemon is ending"),
        Rule("released", "the driver is released (`pause --release`)", "its end"),
        Rule("reserved", "the GPU is reserved", "its end"),
        Rule("paused", "the GPU is paused, also by `--paused`", "its end"),
        Rule(
            "unknown",
            "the GPU cannot be read",
            "the end of its exclusion after a hang or crash, or the next probe",
        ),
        Rule("exclusive", "its compute mode permits one process, or none"),
        Rule("mig", "MIG is enabled"),
        Rule("display", 'a display is active on it, unless `yield_to = "compute"`'),
        Rule("process", "a foreign process is on it"),
        Rule(
            "leak",
            "memory or load without a process has remained since the stressor exited",
            "the next `gpu.cleanup_started`",
        ),
        Rule("idle.memory", _SETTING),
        Rule(
            "computing",
            "a process that is not listed computes on it, where processes may be hidden",
        ),
        Rule("idle.utilization", _SETTING, "2 s after the last stressor"),
        Rule(
            "stopping",
            "a stressor is ending, or its memory is not free yet",
            "the kill, or 5 s after the exit",
        ),
        Rule("backoff", "the last stressor failed", "the next start"),
        Rule("failed", "stressors have failed for good"),
        Rule(
            "confirm",
            "only one reading shows it idle, or the last is older than 1.5 `--poll`, at most 3 s",
        ),
        Rule("rearm", "it waits after a foreign process", "its end"),
        Rule("idle.wait", _SETTING, "its end"),
        Rule("memory.keep_free", "it keeps all of the free memory free"),
        Rule("burnin", "it has done its plan, or does no more of it"),
        Rule(
            "throttle.pace",
            "its [health](checks.md#health-and-allocations) is critical, and this forbids work",
            "the end of `throttle.critical_pause`",
        ),
        Rule(
            "allocations",
            "memory was just [allocated](checks.md#allocated-memory), too little is left, or an"
            " allocated process cannot be distinguished from newcomers",
            "3 s after an allocation",
        ),
        Rule("burnin.together", "it waits for other GPUs of a phase"),
        Rule("probe", "the probe is being replaced", "its start"),
        Rule("api", "the daemon's API has not answered yet, or not for 30 s"),
        Rule("quiet", "the time is within these hours", "their end"),
        Rule("hours", "the time is not within these hours", "their start"),
        Rule("limits.gpus", "its number of held GPUs is reached"),
        Rule("limits.leave_idle", "no more GPUs are idle than it leaves free"),
        Rule("idle.gate", "it is `all`, and another GPU is not idle yet"),
        Rule("limits.starts_per_second", "another stressor was just started", "the next start"),
        Rule(IDLE, "nothing forbids it: a stressor is next, unless `--dry-run`"),
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
    left = format_duration(math.ceil(left_s))
    return f"{reason} (in {left})" if _AT.search(reason) else f"{reason}; may change in {left}"


def has_stressor(gpu: GpuFields) -> bool:
    """Check whether a stressor is on the GPU, as the API has it."""
    return gpu.stressor in _WITH_STRESSOR


def why_unknown(gpu: GpuFields) -> str | None:
    """Explain why it is not known who uses the GPU, or return None; a pause does not explain it."""
    if gpu.occupancy != "UNKNOWN":
        return None
    return gpu.reason if gpu.reason.startswith("unknown") else "unknown: it cannot be read"


def gpu_state(gpu: GpuFields) -> str:
    """Choose the word for the state of a GPU from its fields, as the API has them.

    It is that of the worst known fault, if there is one.
    """
    if gpu.faults:  # None from an older daemon
        return str(gpu.faults[0].kind)
    return next(
        word
        for word, (_, needed) in GPU_STATES.items()
        if all(getattr(gpu, field) in values for field, values in needed.items())
    )
