"""A stressor that survives SIGKILL, like one that is stuck in a driver: it is frozen."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sentinel.errors import ExitCode
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

#: The freezer of control groups of version 1; that of version 2 lets a frozen process be killed.
FREEZER = Path("/sys/fs/cgroup/freezer")

pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("fake_torch"),
    pytest.mark.skipif(
        not (FREEZER / "tasks").exists() or not os.access(FREEZER, os.W_OK),
        reason="needs the freezer of control groups of version 1, and root",
    ),
]


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Freeze a process for a while."""
    group = FREEZER / f"sentinel-test-{pid}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        eventually(lambda: (group / "freezer.state").read_text() == "FROZEN\n")
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        eventually(lambda: not (group / "tasks").read_text())
        group.rmdir()


def test_a_stressor_that_survives_sigkill_affects_its_gpu_only(simulated: SimulatedHost) -> None:
    flags = ("--rearm", "300ms", "--poll", "200ms", "--workload", "hold", "--grace", "1s")
    with simulated.sentinel(2, *flags, "--hang-after", "3s") as sentinel:
        for gpu in range(2):
            sentinel.wait_for("stressor.ready", gpu=gpu)
        (stuck,) = simulated.registry.processes(simulated.uuid(0))
        with frozen(stuck.pid):
            assert sentinel.wait_for("stressor.unkillable", gpu=0)["pid"] == stuck.pid
            with simulated.job(1, stay=0.1) as job:
                assert job.got_memory()
                job.wait_for_exit()
            sentinel.wait_for("stressor.ready", gpu=1, count=2)
            assert sentinel.names(0).count("stressor.starting") == 1
            sentinel.process.send_signal(signal.SIGTERM)
            assert sentinel.process.wait(TIMEOUT_S) == ExitCode.UNKILLABLE
            assert simulated.empty(1)
            # The frozen process still holds its memory, and the lock of its GPU.
            assert not simulated.empty(0)
            with simulated.sentinel(1, *flags) as second:
                assert second.wait_for_exit() == ExitCode.HELD
