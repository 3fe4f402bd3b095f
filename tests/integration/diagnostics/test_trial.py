"""``sentinel workloads try``: a real trial measures a workload and reports its problems."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.harness.gpu_environment import GpuHost, SimulatedHost
from tests.harness.timing import TIMEOUT_S

pytestmark = pytest.mark.usefixtures("fake_torch")


def try_on(host: GpuHost, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a trial on the first GPU; return its exit code and figures."""
    simulated = isinstance(host, SimulatedHost)
    where = ("--simulate", "1") if simulated else ("--gpus", str(host.index(0)))
    command = [sys.executable, "-m", "sentinel", "workloads", "try", *where, "--json", *arguments]
    done = subprocess.run(
        command,
        env=host.environment(),
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT_S,
        check=False,
    )
    assert done.stdout, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, figures


@pytest.mark.long
def test_a_good_workload_passes_with_its_measurements(host: GpuHost) -> None:
    code, figures = try_on(host, "bad_workloads:WellBehaved:rest=0.01", "--for", "2s")
    assert (code, figures["verdict"], figures["problems"]) == (0, "well", []), figures
    assert figures["incomplete"] is None
    assert figures["index"] == host.index(0)
    assert figures["held"] > host.total() // 2
    assert figures["start_s"] > 0
    assert figures["ran_s"] >= 2
    assert figures["iterations_per_s"] > 0
    assert figures["grown"] == 0
    assert figures["note"] == "resting 0.01 s at a time"
    assert figures["longest_quantum_s"] is not None
    assert 0 <= figures["host_cores"] < 2
    assert figures["host_memory"] > 2**23
    assert figures["killed"] is False
    assert host.empty()


@pytest.mark.long
def test_a_too_long_quantum_and_an_ignored_stop_are_reported(host: GpuHost) -> None:
    code, figures = try_on(host, "bad_workloads:queues_long_quanta", "--for", "6s")
    assert code == 1
    assert figures["verdict"] == "misbehaved"
    kinds = [problem["kind"] for problem in figures["problems"]]
    assert kinds == ["long_quantum", "slow_stop"]
    assert all(problem["do"] for problem in figures["problems"])
    assert figures["longest_quantum_s"] >= 0.2
    assert figures["killed"] is True
    assert figures["checks"] > 0


@pytest.mark.long
def test_memory_growth_after_ready_is_reported(simulated: SimulatedHost) -> None:
    code, figures = try_on(simulated, "bad_workloads:grows:after=40", "--for", "30s")
    assert code == 1
    (problem,) = figures["problems"]
    assert problem["kind"] == "memory_growth"
    assert "grew by 64 MiB after it was ready" in problem["what"]
    assert "before the second call of ctx.pace()" in problem["do"]
    assert figures["grown"] == 64 * 2**20


@pytest.mark.long
def test_a_trial_on_a_gpu_in_use_is_incomplete(simulated: SimulatedHost) -> None:
    with simulated.job(share=0.5, stay=60.0) as job:
        assert job.got_memory()
        code, figures = try_on(simulated, "hold", "--for", "2s")
    assert code == 3
    assert figures["verdict"] == "incomplete"
    assert f"(pid {job.pid})" in figures["incomplete"]
    assert figures["gpu"] is None
