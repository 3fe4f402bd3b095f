"""Keep a device busy for a share of the time, in windows of 100 ms. Knows no device and no clock.

Work comes in quanta of some 20 ms that cannot be cut, so a window gets too much or too little. What
it got too much is taken from the next ones, and what it got too little is added to the next, so
that the mean is the share.
"""

from __future__ import annotations

import math

#: How long a window is, in seconds. NVML's sampling period is 1/6 s or more.
WINDOW = 0.1

#: The most that one window may owe, in seconds. Two quanta of 50 ms are the most that a workload
#: may have in flight; what is longer is a host that stood still.
_MOST_OWED = 1.0


class DutyCycle:
    """Says when to rest, and until when. Times are seconds of one clock.

    Args:
        quantum: How long a quantum takes, until one was measured.

    Attributes:
        share: The share of the time for which the device is to be busy; 1 never rests.
    """

    def __init__(self, quantum: float) -> None:
        self.share = 1.0
        self._quantum = quantum
        self._end = 0.0  # of this window
        self._left = 0.0  # how long the device may still be busy in it; below 0 is what it owes
        self._busy_since: float | None = None
        self._quanta = 0

    def follow(self, share: float, now: float) -> None:
        """Take another share; with it a new window begins, and old debts are forgotten."""
        if share == self.share:
            return
        self.share = share
        self._end, self._left = now + WINDOW, share * WINDOW
        if self._busy_since is not None:
            self._busy_since, self._quanta = now, 0

    def is_spent(self, now: float) -> bool:
        """Return whether the device is to rest after what is in flight; called once a quantum.

        By then one quantum is done and another one runs.
        """
        self._quanta += 1
        if self.share >= 1.0:
            return False
        busy = 0.0 if self._busy_since is None else now - self._busy_since
        return busy + self._quantum >= self._left

    def pause(self, now: float) -> None:
        """Note that the device is idle from now on."""
        if self._busy_since is None:
            return
        busy = now - self._busy_since
        self._left = max(-_MOST_OWED, self._left - busy)
        if self._quanta:
            self._quantum = busy / self._quanta
        self._busy_since, self._quanta = None, 0

    def wait(self, now: float) -> float:
        """Return how long the device must rest from now on, in seconds; infinity is for ever."""
        if self.share >= 1.0 or self._busy_since is not None:
            return 0.0
        if self.share <= 0.0:
            return math.inf
        self._begin_windows(now)
        if self._left > 0.0:
            return 0.0
        short = math.floor(-self._left / (self.share * WINDOW))
        return self._end - now + short * WINDOW

    def resume(self, now: float) -> None:
        """Note that the device is busy from now on, unless it was all along."""
        if self._busy_since is None:
            self._busy_since, self._quanta = now, 0

    def _begin_windows(self, now: float) -> None:
        """Begin the windows that are due; what nobody used is kept for one window only."""
        due = math.floor((now - self._end) / WINDOW) + 1
        if due > 0:
            self._end += due * WINDOW
            budget = self.share * WINDOW
            self._left = min(self._left + due * budget, 2.0 * budget)
