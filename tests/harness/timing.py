"""The machine's speed, and the time limits of waits.

A limit is there to end a test that hangs. No test asserts a speed; benchmarks do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Final

#: The duration of :func:`_work` on an idle core, in seconds, as measured on a server of 2022.
_REFERENCE_S = 0.12
#: Carries the measurement to the workers of pytest-xdist, which would otherwise measure each other.
_VARIABLE = "TEST_MACHINE_SLOWNESS"


def _work() -> None:
    """Run Python code and start a process, as tests do."""
    sum(number * number for number in range(1_000_000))
    subprocess.run([sys.executable, "-c", "import json"], check=True)


def _measure_slowness() -> float:
    """Measure how many times longer than on an idle core of reference work takes here, at least 1.

    The duration includes the processor time of other programs.
    """
    if known := os.environ.get(_VARIABLE):
        return float(known)
    began = time.monotonic()
    _work()
    slowness = max(1.0, (time.monotonic() - began) / _REFERENCE_S)
    os.environ[_VARIABLE] = f"{slowness:.2f}"
    return slowness


def _crowding() -> float:
    """Compute how many times more workers share a core than the two of ``make test``."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return max(1.0, workers / len(os.sched_getaffinity(0)) / 2)


#: How many times slower than the reference the machine is; at least 1.
MACHINE_SLOWNESS: Final = _measure_slowness() * _crowding()
#: The limit of anything that a test waits for, in seconds.
TIMEOUT_S: Final = 60.0 * MACHINE_SLOWNESS
#: The limit of one test with its fixtures, in seconds.
TEST_TIMEOUT_S: Final = 300.0 * MACHINE_SLOWNESS
