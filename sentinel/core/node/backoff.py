"""The pauses between replacements of the probe and of the API process. Pure."""

from __future__ import annotations

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
