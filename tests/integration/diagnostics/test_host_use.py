"""The use of the host by a process, against processes that take a known amount."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from sentinel.diagnostics.trial.host_use import HostMeter
from tests.harness.timing import TIMEOUT_S

MIB = 2**20


@contextmanager
def running(code: str) -> Iterator[int]:
    """Run a program until the end of the block; it has printed a line by the beginning."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def consume(pid: int, seconds: float) -> None:
    """Wait until a process has taken so many more seconds of CPU time."""
    begun, until = sum(psutil.Process(pid).cpu_times()[:2]), time.monotonic() + TIMEOUT_S
    while sum(psutil.Process(pid).cpu_times()[:2]) < begun + seconds:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_cpu_time_of_all_threads_counts() -> None:
    meter = HostMeter()
    with running("print(1, flush=True)\nwhile True: pass") as pid:
        meter.sample(pid, 100.0)
        consume(pid, 0.3)
        meter.sample(pid, 101.0)
    use = meter.result()
    assert use is not None
    assert use.cores >= 0.3


def test_the_most_resident_memory_counts() -> None:
    meter = HostMeter()
    with running(
        f"b = b'1' * {50 * MIB}; print(1, flush=True); import time; time.sleep(99)"
    ) as pid:
        meter.sample(pid, 100.0)
        meter.sample(pid, 101.0)
    use = meter.result()
    assert use is not None
    assert use.memory >= 50 * MIB
    assert use.cores < 0.1


def test_a_process_that_has_ended_keeps_its_last_sample() -> None:
    meter = HostMeter()
    with running("print(1, flush=True)\nwhile True: pass") as pid:
        meter.sample(pid, 100.0)
        meter.sample(pid, 101.0)
    before = meter.result()
    meter.sample(pid, 102.0)
    assert meter.result() == before is not None


@pytest.mark.parametrize("samples", [0, 1])
def test_without_two_samples_there_is_no_use(samples: int) -> None:
    meter = HostMeter()
    with running("print(1, flush=True); import time; time.sleep(99)") as pid:
        for number in range(samples):
            meter.sample(pid, 100.0 + number)
    assert meter.result() is None
