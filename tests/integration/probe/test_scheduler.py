"""The read scheduler: blocked jobs delay no others, and failed jobs are reported."""

from __future__ import annotations

import threading
import time

from sentinel.probe.scheduler import ReadScheduler
from tests.harness.sentinel_process import eventually


class CountingJob:
    """A job that is due every few milliseconds, counts its runs and blocks on request."""

    def __init__(self) -> None:
        self.due = 0.0
        self.count = 0
        self.overlapped = False
        self.unblocked = threading.Event()
        self.unblocked.set()
        self._inside = False

    def run(self) -> None:
        """Count, and block while ``unblocked`` is cleared."""
        self.overlapped |= self._inside
        self._inside = True
        self.unblocked.wait()
        self._inside = False
        self.count += 1
        self.due = time.monotonic() + 0.002

    def stop(self) -> None:
        """Make the job never due again."""
        self.run = self.retire  # type: ignore[method-assign]

    def retire(self) -> None:
        """Set the due time to infinity."""
        self.due = float("inf")


def test_jobs_that_block_do_not_delay_others() -> None:
    """Each job runs in one thread at a time, and blocked jobs continue later."""
    jobs = [CountingJob() for _ in range(5)]
    *blocked, free = jobs
    threads = threading.active_count()
    scheduler = ReadScheduler(lambda error: None)
    scheduler.start(jobs)
    for _ in range(3):
        for job in blocked:
            job.unblocked.clear()
        reached = free.count + 20
        eventually(lambda reached=reached: free.count > reached)  # type: ignore[misc]
        for job in blocked:
            job.unblocked.set()
        for job in jobs:
            goal = job.count + 5
            eventually(lambda job=job, goal=goal: job.count > goal)  # type: ignore[misc]
    assert not any(job.overlapped for job in jobs)
    eventually(
        lambda: threading.active_count() - threads <= 3
    )  # the leader and two waiting threads
    for job in jobs:
        job.stop()


def test_a_job_that_fails_is_reported() -> None:
    """Otherwise the reads of its GPU would end silently."""
    errors: list[BaseException] = []
    failing = CountingJob()
    failing.run = fail  # type: ignore[method-assign]
    ReadScheduler(errors.append).start([failing])
    eventually(lambda: bool(errors))
    assert isinstance(errors[0], ZeroDivisionError)


def fail() -> None:
    """Raise an unexpected error."""
    raise ZeroDivisionError
