"""Properties that only a real GPU can show."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sentinel.stressor.numa import places_of
from tests.harness.burnin_run import plan_of
from tests.harness.gpu_environment import ROOT, RealHost
from tests.harness.programs import run_program
from tests.harness.sentinel_process import SentinelProcess, eventually
from tests.harness.timing import TIMEOUT_S

pytestmark = pytest.mark.gpu

QUICK = ("--rearm", "300ms", "--poll", "200ms", "--status-every", "1s")
GIB = 2**30
FFT = ROOT / "examples" / "sentinel-workload-fft" / "src"


@contextmanager
def occupied(
    real: RealHost, *flags: str, environment: dict[str, str] | None = None
) -> Iterator[SentinelProcess]:
    """Run a sentinel that holds the first GPU."""
    with real.sentinel(1, *QUICK, *flags, environment=environment) as sentinel:
        sentinel.wait_for("stressor.ready", gpu=0)
        yield sentinel


def run(real: RealHost, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = (sys.executable, "-m", "sentinel", *arguments, *real.flags([0]))
    return run_program(*words, env=real.environment())


def has_rate(sentinel: SentinelProcess, rate: str, count: int) -> bool:
    """Check whether at least ``count`` events have this rate."""
    return len([event for event in sentinel.events if event.get(rate, 0) > 0]) >= count


@pytest.mark.parametrize(
    "workload",
    [
        "hold",
        "elementwise",
        "gemm",
        "gemm:dtype=fp8",
        "gemm:dtype=int8",
        "gemm:dtype=fp64",
        "memtest",
        "memtest:patterns=random,retention=1",
        "mixed:seconds=0.5",
        "pulse:hz=4,sync=in-phase",
        "pulse:hz=50,burst=2",
    ],
)
def test_memory_does_not_change_by_a_byte_after_ready(real: RealHost, workload: str) -> None:
    with occupied(real, "--workload", workload) as sentinel:
        held = real.held()
        assert held > 0.85 * real.total()
        seen = set()
        until = time.monotonic() + 4
        while time.monotonic() < until:
            seen.add(real.held())
        assert max(seen) - min(seen) <= real.noise_bytes
        rates = {"hold": "running_s", "elementwise": "bytes_per_s", "memtest": "bytes_per_s"}
        eventually(
            lambda: has_rate(sentinel, rates.get(workload.partition(":")[0], "flops_per_s"), 2)
        )
        assert "gpu.yielding" not in sentinel.names()
        assert not any(event.get("errors") for event in sentinel.events)
        assert "stressor.finding" not in sentinel.names()


@pytest.mark.parametrize(("hz", "burst"), [(100, 0.1), (50, 1.0), (20, 5.0)])
def test_bursts_are_as_long_and_as_many_as_asked_for(
    real: RealHost, hz: float, burst: float
) -> None:
    with occupied(real, "--workload", f"pulse:hz={hz},burst={burst}") as sentinel:
        eventually(lambda: has_rate(sentinel, "flops_per_s", 4))
        shown = [event for event in sentinel.events if event.get("flops_per_s", 0) > 0][1:]
        took, products, rows = map(float, re.findall(r"[\d.]+", shown[-1]["note"]))
        assert took == pytest.approx(burst, rel=0.35)
        rate = sum(event["flops_per_s"] for event in shown) / len(shown)
        # Status and progress have intervals of their own.
        assert rate == pytest.approx(hz * products * 2 * rows**3, rel=0.2)
        assert "stressor.finding" not in sentinel.names()


def test_the_memory_of_copies_is_on_the_numa_node_that_the_host_names(
    real: RealHost, tmp_path: Path
) -> None:
    plan, folder = tmp_path / "plan.toml", tmp_path / "run"
    plan.write_text(plan_of("numa", ("links", "links", "seconds = 5")))
    run(real, "burnin", "--plan", str(plan), "--report", str(folder))
    (gpu,) = json.loads((folder / "report.json").read_text())["gpus"]
    (host,) = (row for row in gpu["checks"] if row["id"] == "links.host")
    assert host["value"] > 0.66, host
    near, _, why = places_of(gpu["pci_bus_id"])
    # A container may forbid to bind memory, and says so.
    expected = f"host memory: {near}" if near else f"not bound to a NUMA node: {why}"
    assert expected in host["evidence"] or "not bound to NUMA" in host["evidence"], host


def test_a_memory_smaller_than_the_cache_is_tested_with_a_flush(real: RealHost) -> None:
    small = ("--memory", "64MiB", "--chunk", "16MiB", "--workload", "memtest")
    with occupied(real, *small) as sentinel:
        held = real.held()
        eventually(lambda: has_rate(sentinel, "bytes_per_s", 3))
        assert abs(real.held() - held) <= real.noise_bytes
        assert "stressor.finding" not in sentinel.names()


@pytest.mark.parametrize("workload", ["gemm", "elementwise"])
def test_a_pace_and_a_rest_do_not_change_the_memory(real: RealHost, workload: str) -> None:
    """The utilization is 0 during rests and follows the pace otherwise."""
    flags = ("--util", "30%", "--duty", "5s/4s", "--workload", workload)
    with occupied(real, *flags) as sentinel:
        held = {real.held()}
        for pace_number in (2, 3):
            while sentinel.names().count("stressor.pace") < pace_number:
                held.add(real.held())
                time.sleep(0.01)
        assert max(held) - min(held) <= real.noise_bytes
        assert "gpu.yielding" not in sentinel.names()
        paced = [e for e in sentinel.events if e["event"] == "gpu.status" and "share" in e]
        assert any(e["rests"] and e["utilization"] == 0.0 for e in paced)
        # The first readings include the time before Ready.
        worked = sorted(e["utilization"] for e in paced if e["utilization"] and not e["rests"])
        assert worked[len(worked) // 2] < 0.6
        assert all(e["temperature_c"] and e["power_w"] and e["sm_clock_mhz"] for e in paced)


def test_a_size_is_held_exactly(real: RealHost) -> None:
    with occupied(real, "--memory", "20GiB", "--workload", "hold") as sentinel:
        ready = sentinel.wait_for("stressor.ready")
        assert (ready["chunks"], ready["held"], ready["refused"]) == (40, 20 * GIB, False)
        assert 20 * GIB < real.held() < 21 * GIB


def test_a_target_above_the_free_memory_takes_all_of_it(real: RealHost) -> None:
    """A refused chunk ends the filling cleanly, and a newcomer gets its memory."""
    with occupied(real, "--memory", "10000GiB", "--workload", "hold") as sentinel:
        ready = sentinel.wait_for("stressor.ready")
        assert ready["refused"]
        assert ready["held"] > 0.95 * real.total()
        with real.job() as newcomer:
            assert newcomer.got_memory()


@pytest.mark.parametrize("workload", ["gemm", "elementwise", "units"])
def test_a_reserve_stays_free_after_kernels_have_loaded(real: RealHost, workload: str) -> None:
    reserve = ("--memory", "100%", "--keep-free", "20GiB")
    with occupied(real, *reserve, "--workload", workload):
        assert 20 * GIB <= real.total() - real.held() < 22 * GIB


def test_the_stressors_load_is_not_taken_for_a_newcomer(real: RealHost) -> None:
    """NVML's utilization lags: for a while it includes the ended stressor."""
    flags = ("--idle-utilization", "5%", "--workload", "elementwise")
    with occupied(real, *flags) as sentinel:
        eventually(lambda: has_rate(sentinel, "bytes_per_s", 2))
        (stressor,) = sentinel.stressors()
        stressor.kill()
        sentinel.wait_for("stressor.failed")
        sentinel.wait_for("stressor.ready", count=2)
        assert "gpu.busy" not in sentinel.names()


def test_one_flipped_bit_is_found_and_changes_no_memory(real: RealHost) -> None:
    flips = ("--memory", "4GiB", "--workload", "bad_workloads:flips_a_bit:size=4096")
    with occupied(real, *flips) as sentinel:
        held = real.held()
        mismatch = sentinel.wait_for("stressor.mismatch")
        assert mismatch["errors"] == 1
        finding = sentinel.wait_for("stressor.finding")
        assert (finding["first"], finding["count"], finding["kind"]) == ([3, 4], 1, "transient")
        assert abs(real.held() - held) <= real.noise_bytes
        assert "gpu.yielding" not in sentinel.names()


def test_exactly_the_injected_faults_are_found_on_the_gpu(real: RealHost) -> None:
    words = (sys.executable, "-m", "sentinel", "workloads", "selftest", "--json")
    chosen = ("--gpus", str(real.index(0)), "--flips", "5", "--rounds", "1000")
    done = run_program(*words, *chosen, env=real.environment(), timeout=4 * TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = json.loads(done.stdout)["trials"]
    assert {trial["place"] for trial in trials} >= {"result", "clean"}
    proofs = {trial["dtype"]: trial for trial in trials if trial["place"] == "comparison"}
    assert proofs["bf16"]["tried"] == 200
    assert 30 <= proofs["bf16"]["rounded"] <= 65
    assert proofs["fp32"]["rounded"] <= 15


def test_torch_cannot_grow_after_ready(real: RealHost) -> None:
    with occupied(
        real, "--memory", "4GiB", "--workload", "bad_workloads:takes_memory_late"
    ) as sentinel:
        failed = sentinel.wait_for("stressor.failed")
        assert "out of memory" in failed["reason"]
        assert "gpu.yielding" not in sentinel.names()


def test_a_monitoring_process_is_no_newcomer(real: RealHost) -> None:
    with occupied(real, "--workload", "hold") as sentinel:
        for query in (["nvidia-smi"], ["nvidia-smi", "-q"]) * 5:
            subprocess.run(query, capture_output=True, timeout=TIMEOUT_S, check=True)
        assert "gpu.yielding" not in sentinel.names()


def test_a_process_on_another_gpu_is_no_newcomer(real: RealHost) -> None:
    """A CUDA program opens every GPU's node, and may hold some memory on each."""
    if real.count < 2:
        pytest.skip("needs 2 GPUs")
    with occupied(real, "--workload", "hold") as sentinel, ExitStack() as stack:
        jobs = [stack.enter_context(real.job(1, share=0.05, stay=2.0)) for _ in range(8)]
        assert all(job.got_memory() for job in jobs)
        assert "gpu.yielding" not in sentinel.names()


def test_a_process_with_only_a_context_is_a_newcomer(real: RealHost) -> None:
    with (
        occupied(real, "--workload", "hold") as sentinel,
        real.job(share=0.0, stay=2.0) as newcomer,
    ):
        assert newcomer.got_memory()
        handed = sentinel.wait_for("gpu.handed_over", gpu=0)
        assert handed["processes"] == [] or handed["processes"][0]["pid"] == newcomer.pid
        newcomer.wait_for_exit()
        sentinel.wait_for("stressor.ready", gpu=0, count=2)


def test_the_example_runs_on_a_gpu(real: RealHost) -> None:
    workload = ("--memory", "4GiB", "--workload", "sentinel_workload_fft:fft")
    with occupied(real, *workload, environment={"PYTHONPATH": str(FFT)}) as sentinel:
        eventually(lambda: has_rate(sentinel, "checks", 2))
        assert not any(event.get("errors") for event in sentinel.events)


def trial(real: RealHost, workload: str, seconds: str) -> tuple[int, dict[str, Any]]:
    """Run a trial; return its exit code and figures."""
    words = (sys.executable, "-m", "sentinel", "workloads", "try", workload, "--json")
    chosen = ("--for", seconds, "--gpus", str(real.index(0)))
    done = run_program(*words, *chosen, env=real.environment(), timeout=3 * TIMEOUT_S)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("workload", ["gemm", "elementwise"])
def test_a_trial_of_a_built_in_workload_passes(real: RealHost, workload: str) -> None:
    code, figures = trial(real, workload, "5s")
    assert (code, figures["problems"]) == (0, []), figures
    assert 0 < figures["longest_quantum_s"] < 0.05
    assert figures["grown"] <= real.noise_bytes
    assert figures["flops_per_s" if workload == "gemm" else "bytes_per_s"] > 1e11


def test_a_long_kernel_is_detected_without_a_wait_of_the_host(
    real: RealHost,
) -> None:
    code, figures = trial(real, "bad_workloads:queues_long_kernels", "5s")
    assert code == 1
    assert [problem["kind"] for problem in figures["problems"]] == ["long_quantum"]
    assert 0.1 < figures["longest_quantum_s"] < 1.0


def judged(real: RealHost) -> dict[str, Any]:
    """Return what ``--once`` says of the first GPU."""
    done = run(real, "--once", "--json")
    assert done.returncode == 0, done.stderr
    (gpu,) = json.loads(done.stdout)["gpus"]
    return dict(gpu)


def test_a_process_on_the_gpu_is_listed(real: RealHost) -> None:
    listed = run(real, "--list", "--json")
    assert [gpu["uuid"] for gpu in json.loads(listed.stdout)["gpus"]] == [real.uuid()]
    assert judged(real)["occupancy"] == "IDLE"
    with real.job(share=0.1, stay=TIMEOUT_S) as job:
        assert job.got_memory()
        busy = judged(real)
        assert busy["occupancy"] == "BUSY"
        assert job.pid in [process["pid"] for process in busy["reading"]["processes"]]
