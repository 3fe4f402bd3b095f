"""The back-off of processes: the pauses before a next one, and its end by an operator. Pure."""

from __future__ import annotations

from dataclasses import replace

from sentinel.core.gpu_state import GpuState
from sentinel.core.stressor_state import Backoff, Fatal, Stopped

#: The maximum pause before the next process, in seconds.
MAX_PAUSE_S = 30.0
#: A process that lived for so long resets the back-off, in seconds.
FORGIVE_AFTER_S = 60.0


def next_pause(failures: int, lived_s: float) -> tuple[int, float]:
    """Count a failure; return the new count and the pause: none at first, then 1, 2, 4 ... 30 s."""
    if lived_s >= FORGIVE_AFTER_S:
        failures = 0
    pause = 0.0 if failures == 0 else min(MAX_PAUSE_S, 2.0 ** (failures - 1))
    return failures + 1, pause


def reset_failures(gpu_state: GpuState) -> GpuState:
    """End the back-off and the FATAL state of a GPU, as the operator asks for a stressor."""
    if isinstance(gpu_state.stressor, Fatal | Backoff):
        return replace(gpu_state, stressor=Stopped(), failures=(), streak=0)
    return gpu_state
