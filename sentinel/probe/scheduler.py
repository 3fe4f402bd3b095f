"""Read many GPUs in turns from one thread, and never wait for one that does not answer.

To wake a thread on a cold core costs more than to read a GPU: the first NVML call after a pause of
25 ms took 140 us of CPU on an H200 host, the next one 14. So one thread leads and reads whatever is
due, one GPU after the other. When a call takes too long, as while a context is torn down or for
ever on a broken GPU, another thread takes the lead and goes on with the others.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

#: How long one GPU may take in seconds before somebody else reads the next. A call takes up to
#: 0.2 ms when nothing is wrong; eight GPUs that all block at once delay the last of them by 14 ms.
_PATIENCE = 0.002

#: Threads that wait for the lead, and no more once nobody is held up: each is 40 kB of memory. With
#: two, the one who takes the lead need not first hire its own successor.
_SPARE = 2

#: The longest sleep in seconds, where nothing is ever due.
_LONG = 3600.0

_CLOCK_MONOTONIC = 1


class Job(Protocol):
    """Something that is to be done again and again."""

    due: float
    """When, in seconds of the monotonic clock. May be changed at any time, followed by a wake."""

    def take(self) -> None:
        """Do it, and set ``due`` anew. May block for as long as it likes."""


class ReadScheduler:
    """Takes every turn when it is due, each in one thread at a time.

    Args:
        give_up: Called in the thread concerned when a turn raises; does not return.
    """

    def __init__(self, give_up: Callable[[BaseException], None]) -> None:
        self._turns: tuple[Job, ...] = ()
        self._give_up = give_up
        # The leader sleeps on a lock, the cheapest wait with a bound that Python has.
        self._sleep = threading.Lock()
        self._sleep.acquire()
        self._timer = _Timer()
        # Guards what follows: whose term it is, whether that thread is in a turn, which turns are
        # being taken by any thread, and how many threads wait for the lead.
        self._baton = threading.Lock()
        self._term = 0
        self._leader_busy = False
        self._taken: set[int] = set()
        self._waiting = 0

    def start(self, turns: Sequence[Job]) -> None:
        """Begin with these turns, in this order; one thread leads and others wait for the lead."""
        self._turns = tuple(turns)
        self._hire(leads=True)
        for _ in range(_SPARE):
            self._hire(leads=False)

    def wake(self) -> None:
        """Let the leader look at what is due; called after a turn's ``due`` was changed."""
        with contextlib.suppress(RuntimeError):  # it is awake, or about to be, and will look
            self._sleep.release()

    def _hire(self, *, leads: bool) -> None:
        self._waiting += not leads
        threading.Thread(target=self._work, args=(leads,), name="reader", daemon=True).start()

    def _work(self, leads: bool) -> None:  # noqa: FBT001 - a thread's argument
        try:
            term = 0 if leads else self._wait_for_the_lead()
            self._lead(term)
            while self._stays():
                self._lead(self._wait_for_the_lead())
        except BaseException as error:  # noqa: BLE001 - a turn that nobody takes is worse than all
            self._give_up(error)

    def _stays(self) -> bool:
        """Return whether this thread, which lost the lead, waits for it again."""
        with self._baton:
            if self._waiting >= _SPARE:
                return False
            self._waiting += 1
            return True

    def _wait_for_the_lead(self) -> int:
        """Return the number of our term, once the leader is held up."""
        while True:
            self._timer.wait()
            with self._baton:
                if not self._leader_busy:
                    continue  # it came back in the meantime
                self._leader_busy = False
                self._term += 1
                self._waiting -= 1
                if not self._waiting:
                    self._hire(leads=False)
                return self._term

    def _lead(self, term: int) -> None:
        """Take all turns that are due, until another thread leads because one took too long."""
        while True:
            for number, turn in enumerate(self._turns):
                if turn.due <= time.monotonic() and not self._take(number, term):
                    return
            self._timer.stop()
            free = (t.due for number, t in enumerate(self._turns) if number not in self._taken)
            wait = min(free, default=_LONG + time.monotonic()) - time.monotonic()
            if wait > 0:
                self._sleep.acquire(timeout=min(wait, _LONG))

    def _take(self, number: int, term: int) -> bool:
        """Take one turn, unless it is being taken; return whether we still lead."""
        with self._baton:
            if number in self._taken:
                return True
            self._taken.add(number)
            self._leader_busy = True
        self._timer.start()
        self._turns[number].take()
        with self._baton:
            self._taken.discard(number)
            if self._term == term:
                self._leader_busy = False
                return True
        self.wake()  # the turn is free again, and due some time
        return False


class _Timer:
    """A timer that wakes one waiting thread, and costs nobody a wake-up while it is put off.

    Python has none before 3.13, so the kernel's timerfd is called by hand.
    """

    def __init__(self) -> None:
        libc = ctypes.PyDLL(None, use_errno=True)
        self._set = libc.timerfd_settime
        self._fd = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        # struct itimerspec: the interval and the first expiry, each in seconds and nanoseconds.
        self._soon = (ctypes.c_long * 4)(0, 0, 0, int(_PATIENCE * 1e9))
        self._never = (ctypes.c_long * 4)()

    def start(self) -> None:
        """Let it go off after ``_PATIENCE``, counted from now."""
        self._set(self._fd, 0, self._soon, None)

    def stop(self) -> None:
        """Keep it from going off."""
        self._set(self._fd, 0, self._never, None)

    def wait(self) -> None:
        """Block until it went off."""
        os.read(self._fd, 8)
