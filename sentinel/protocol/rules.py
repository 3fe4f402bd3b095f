"""The rules by which a GPU is occupied or not, and the word for its state."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from sentinel.units import format_duration

if TYPE_CHECKING:
    from sentinel.protocol.views import GpuFields

#: The GPU has a stressor that works.
RUNNING = "running"
#: Nothing forbids a start.
IDLE = "idle"

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
