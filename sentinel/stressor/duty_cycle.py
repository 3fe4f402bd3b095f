"""Keep a device busy for a share of the time, in windows of 100 ms; no device, no clock.

Work comes in quanta of some 20 ms that cannot be split, so a window gets too much or too little.
The excess is taken from the next windows and a deficit is added to the next one, so that the mean
equals the share.
"""

from __future__ import annotations

import math

#: The length of a window. NVML's sampling period is 1/6 s or more.
WINDOW_S = 0.1

#: The maximum debt of a window. A workload has at most two quanta of 50 ms in flight; a longer
#: overrun means that the host stood still.
_MAX_DEBT_S = 1.0


class DutyCycle:
    """Decides when the device rests, and for how long. Times are seconds of one clock.

    Args:
        quantum: The duration of a quantum until one is measured.

    Attributes:
        share: The share of the time for which the device is to be busy; 1 never rests.
    """

    def __init__(self, quantum: float) -> None:
        self.share = 1.0
        self._quantum = quantum
        self._end = 0.0  # of this window
        self._left = 0.0  # remaining busy time of this window; negative if it is in debt
        self._busy_since: float | None = None
        self._quanta = 0

    def set_share(self, share: float, now: float) -> None:
        """Change the share, start a new window and forget any debt."""
        if share == self.share:
            return
        self.share = share
        self._end, self._left = now + WINDOW_S, share * WINDOW_S
        if self._busy_since is not None:
            self._busy_since, self._quanta = now, 0

    def is_spent(self, now: float) -> bool:
        """Check whether the device is to rest after the work in flight; called once per quantum.

        At that time one quantum is done and another one is running.
        """
        self._quanta += 1
        if self.share >= 1.0:
            return False
        busy = 0.0 if self._busy_since is None else now - self._busy_since
        return busy + self._quantum >= self._left

    def pause(self, now: float) -> None:
        """Record that the device is idle from now on."""
        if self._busy_since is None:
            return
        busy = now - self._busy_since
        self._left = max(-_MAX_DEBT_S, self._left - busy)
        if self._quanta:
            self._quantum = busy / self._quanta
        self._busy_since, self._quanta = None, 0

    def rest_s(self, now: float) -> float:
        """Compute how long the device must rest from now on; infinite at a share of 0."""
        if self.share >= 1.0 or self._busy_since is not None:
            return 0.0
        if self.share <= 0.0:
            return math.inf
        self._begin_windows(now)
        if self._left > 0.0:
            return 0.0
        short = math.floor(-self._left / (self.share * WINDOW_S))
        return self._end - now + short * WINDOW_S

    def resume(self, now: float) -> None:
        """Record that the device is busy from now on, if it was idle."""
        if self._busy_since is None:
            self._busy_since, self._quanta = now, 0

    def _begin_windows(self, now: float) -> None:
        """Start the windows that are due; unused time is kept for one window only."""
        due = math.floor((now - self._end) / WINDOW_S) + 1
        if due > 0:
            self._end += due * WINDOW_S
            budget = self.share * WINDOW_S
            self._left = min(self._left + due * budget, 2.0 * budget)
