"""On a real GPU: allocated memory is available beside a stressor, and only there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.client import Client, GpuStatus, connect
from tests.harness.gpu_environment import RealHost
from tests.harness.narrowing import not_none
from tests.harness.programs import piped_program
from tests.harness.sentinel_process import SentinelProcess, eventually

pytestmark = pytest.mark.gpu

GIB = 2**30
FLAGS = ("--rearm", "300ms", "--poll", "200ms", "--workload", "hold")

#: Waits for a line, allocates the given GiB in one piece, prints the result, and waits.
TAKE_MEMORY = """
import sys, torch
sys.stdin.readline()
try:
    memory = torch.empty(int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda")
    memory.fill_(1)
    torch.cuda.synchronize()
except torch.OutOfMemoryError:
    print("refused", flush=True)
else:
    print("got", flush=True)
sys.stdin.readline()
"""
#: Requests an allocation, takes its memory, and starts a child that takes more.
ALLOCATE = """
import subprocess, sys, torch
from sentinel.client import connect
size = float(sys.argv[2])
client = connect(sys.argv[1])
print(client.allocate("job", f"{size:g}GiB", gpu=sys.argv[4], wait=60).id, flush=True)
sys.stdin.readline()
memory = torch.empty(int(size * 2**30), dtype=torch.uint8, device="cuda")
memory.fill_(1)
torch.cuda.synchronize()
print("got", flush=True)
sys.stdin.readline()
child = [sys.executable, "-c", sys.argv[3], "0.25"]
done = subprocess.run(child, input="\\n\\n", text=True, stdout=subprocess.PIPE)
print(done.stdout.strip(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def served(real: RealHost, tmp_path: Path) -> Iterator[tuple[SentinelProcess, Client]]:
    socket = tmp_path / "sentinel.sock"
    variables = {
        "SENTINEL_SOCKET": str(socket),
        "STATE_DIRECTORY": str(tmp_path),
        "LOGS_DIRECTORY": str(tmp_path),
    }
    with real.sentinel(1, *FLAGS, api=True, environment=variables) as sentinel:
        sentinel.wait_for("stressor.ready", gpu=0)
        yield sentinel, connect(socket)


def program(real: RealHost, code: str, *arguments: str) -> subprocess.Popen[str]:
    environment = real.environment(CUDA_VISIBLE_DEVICES=real.uuid(0))
    return piped_program(
        sys.executable, "-c", code, *arguments, env=environment, start_new_session=True
    )


def read_answer(process: subprocess.Popen[str], *, send_line: bool = True) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    if send_line:
        process.stdin.write("\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


def runs_beside_allocation(client: Client) -> bool:
    """Check whether a stressor runs beside an allocated process."""
    gpu = client.status().gpus[0]
    return gpu.occupied and bool(gpu.allocated_processes)


def first_gpu(client: Client) -> GpuStatus:
    return client.status().gpus[0]


def test_an_allocation_is_usable_beside_a_stressor_and_a_newcomer_gets_all_memory(
    real: RealHost, served: tuple[SentinelProcess, Client]
) -> None:
    """40 GiB of an H200 with 140 GiB, and the same share of other cards."""
    _, client = served
    size = min(40.0, round(real.total() / GIB * 0.3))
    arguments = (str(client.address.socket), f"{size:g}", TAKE_MEMORY, real.uuid(0))
    with program(real, ALLOCATE, *arguments) as job:
        try:
            assert read_answer(job, send_line=False) == "job"
            assert real.total() - real.held() >= size * GIB
            assert read_answer(job) == "got"
            eventually(lambda: runs_beside_allocation(client))
            assert read_answer(job) == "got"
            gpu_status = first_gpu(client)
            assert (gpu_status.occupied, gpu_status.yields) == (True, 0)
            assert size * GIB <= not_none(gpu_status.memory_foreign) <= (size + 2) * GIB
            with program(real, TAKE_MEMORY, f"{real.total() / GIB * 0.55:g}") as newcomer:
                try:
                    assert read_answer(newcomer) == "got"  # although a stressor ran
                    eventually(lambda: first_gpu(client).yields == 1)
                finally:
                    newcomer.kill()
            eventually(lambda: runs_beside_allocation(client))
        finally:
            job.kill()
    eventually(lambda: client.status().allocations == ())
    eventually(lambda: first_gpu(client).occupied)


def test_a_process_without_an_allocation_makes_the_stressor_yield(
    real: RealHost, served: tuple[SentinelProcess, Client]
) -> None:
    _, client = served
    with program(real, TAKE_MEMORY, f"{real.total() / GIB * 0.9:g}") as newcomer:
        try:
            assert read_answer(newcomer) == "got"
        finally:
            newcomer.kill()
    eventually(lambda: first_gpu(client).yields == 1)


def test_health_follows_the_thresholds_that_the_gpu_declares(
    served: tuple[SentinelProcess, Client],
) -> None:
    _, client = served
    eventually(lambda: first_gpu(client).telemetry is not None)
    gpu = first_gpu(client)
    telemetry = not_none(gpu.telemetry)
    assert gpu.health in {"optimal", "normal", "throttled"}
    for value in (
        telemetry.temperature_c,
        telemetry.power_limit_w,
        telemetry.sm_clock_mhz,
        telemetry.memory_clock_mhz,
    ):
        assert not_none(value) > 0
    assert 0 < not_none(telemetry.power_w) <= (telemetry.power_limit_w or 0) * 1.1
    if telemetry.slowdown_c is not None and telemetry.temperature_c is not None:
        assert telemetry.temperature_c < telemetry.slowdown_c
