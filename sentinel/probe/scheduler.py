"""Run the read jobs of many GPUs from one thread, without waiting for a GPU that hangs.

Waking a thread on a cold core costs more than reading a GPU: the first NVML call after a pause of
25 ms took 140 us of CPU on an H200 host, the next one 14. So one thread, the leader, runs whatever
is due, one job after the other. When a call takes too long, because a context is being torn down or
a GPU is broken, another thread takes the lead and continues with the other jobs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

#: How long a job may take before another thread takes the lead. A normal call takes up to 0.2 ms.
#: Eight GPUs that all block at once delay the last of them by 14 ms.
_MAX_JOB_S = 0.002

#: Threads that wait for the lead while no job hangs, 40 kB of memory each. With two of them, a
#: thread that takes the lead need not start its own successor first.
_STANDBY_THREADS = 2

#: The maximum sleep, if no job is ever due.
_MAX_SLEEP_S = 3600.0

_CLOCK_MONOTONIC = 1


class Job(Protocol):
    """A job that is run repeatedly."""

    due: float
    """The monotonic time of the next run. After a change from outside, wake the scheduler."""

    def run(self) -> None:
        """Run the job and set ``due``. May block without limit."""


class ReadJob:
    """A repeated read: ``read`` takes the time and returns when it is due next."""

    def __init__(self, read: Callable[[float], float]) -> None:
        self.due = 0.0
        self._read = read
        self._requested = False

    def request(self) -> None:
        """Make the job due now, and once more if it is running."""
        self._requested = True
        self.due = 0.0

    def run(self) -> None:
        """Read, and set the next due time."""
        self._requested = False
        self.due = self._read(time.monotonic())
        if self._requested:
            self.due = 0.0


class ReadScheduler:
    """Runs each job when it is due, in at most one thread at a time.

    Args:
        on_error: Called in the job's thread if it raises; does not return.
    """

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._jobs: tuple[Job, ...] = ()
        self._on_error = on_error
        # The leader sleeps on a lock, Python's cheapest wait with a timeout.
        self._sleep = threading.Lock()
        self._sleep.acquire()
        self._timer = _Timer()
        # Guards the fields below: the number of the leader's term, whether the leader is running a
        # job, the jobs that any thread is running, and the number of threads waiting for the lead.
        self._lock = threading.Lock()
        self._term = 0
        self._leader_busy = False
        self._running: set[int] = set()
        self._waiting = 0

    def start(self, jobs: Sequence[Job]) -> None:
        """Start to run ``jobs``, in this order if several are due."""
        self._jobs = tuple(jobs)
        self._start_thread(leads=True)
        for _ in range(_STANDBY_THREADS):
            self._start_thread(leads=False)

    def wake(self) -> None:
        """Have the leader check what is due; called after a change of a job's ``due``."""
        with contextlib.suppress(RuntimeError):  # the leader is awake and will check
            self._sleep.release()

    def _start_thread(self, *, leads: bool) -> None:
        self._waiting += not leads
        threading.Thread(target=self._work, args=(leads,), name="reader", daemon=True).start()

    def _work(self, leads: bool) -> None:  # noqa: FBT001 - a thread's argument
        try:
            term = 0 if leads else self._wait_for_lead()
            self._lead(term)
            while self._may_stay():
                self._lead(self._wait_for_lead())
        except BaseException as error:  # noqa: BLE001 - a job that no thread runs is worse
            self._on_error(error)

    def _may_stay(self) -> bool:
        """Check whether this thread, which lost the lead, is to wait for it again."""
        with self._lock:
            if self._waiting >= _STANDBY_THREADS:
                return False
            self._waiting += 1
            return True

    def _wait_for_lead(self) -> int:
        """Wait until the leader hangs, take the lead, and return the number of the new term."""
        while True:
            self._timer.wait()
            with self._lock:
                if not self._leader_busy:
                    continue  # the job returned in the meantime
                self._leader_busy = False
                self._term += 1
                self._waiting -= 1
                if not self._waiting:
                    self._start_thread(leads=False)
                return self._term

    def _lead(self, term: int) -> None:
        """Run all due jobs, until another thread takes the lead because one took too long."""
        while True:
            for number, job in enumerate(self._jobs):
                if job.due <= time.monotonic() and not self._run_job(number, term):
                    return
            self._timer.stop()
            idle = (job.due for number, job in enumerate(self._jobs) if number not in self._running)
            wait = min(idle, default=_MAX_SLEEP_S + time.monotonic()) - time.monotonic()
            if wait > 0:
                self._sleep.acquire(timeout=min(wait, _MAX_SLEEP_S))

    def _run_job(self, number: int, term: int) -> bool:
        """Run one job, unless it is running; return whether this thread still leads."""
        with self._lock:
            if number in self._running:
                return True
            self._running.add(number)
            self._leader_busy = True
        self._timer.start()
        self._jobs[number].run()
        with self._lock:
            self._running.discard(number)
            if self._term == term:
                self._leader_busy = False
                return True
        self.wake()  # the job is free again, and has a new due time
        return False


class _Timer:
    """A timer that wakes one waiting thread; postponing it wakes none.

    Python has no timerfd before 3.13, so the kernel's is called through ctypes.
    """

    def __init__(self) -> None:
        libc = ctypes.PyDLL(None, use_errno=True)
        self._set = libc.timerfd_settime
        self._fd = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        # struct itimerspec: interval and first expiry, each in seconds and nanoseconds.
        self._soon = (ctypes.c_long * 4)(0, 0, 0, int(_MAX_JOB_S * 1e9))
        self._never = (ctypes.c_long * 4)()

    def start(self) -> None:
        """Expire after ``_MAX_JOB_S`` from now."""
        self._set(self._fd, 0, self._soon, None)

    def stop(self) -> None:
        """Cancel the expiry."""
        self._set(self._fd, 0, self._never, None)

    def wait(self) -> None:
        """Block until the timer expires."""
        os.read(self._fd, 8)


def next_multiple(now: float, interval: float) -> float:
    """Return the next multiple of ``interval``, which keeps all GPUs in step without drift."""
    return (now // interval + 1) * interval
