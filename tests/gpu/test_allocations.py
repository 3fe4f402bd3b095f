"""On a real GPU: allocated memory is available beside a stressor, and only there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.client import Client, GpuStatus, connect
from tests.harness.gpu_environment import RealHost
from tests.harness.sentinel_process import SentinelProcess, eventually

pytestmark = pytest.mark.gpu

GIB = 2**30
FLAGS = ("--rearm", "300ms", "--poll", "200ms", "--workload", "hold")

#: Takes so many GiB in one piece once it reads a line, says whether it got them, and stays.
TAKES = """
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
#: Is promised memory, takes it, and starts a child that takes some more.
GUEST = """
import subprocess, sys, torch
from sentinel.client import connect
size = float(sys.argv[2])
print(connect(sys.argv[1]).allocate("guest", f"{size:g}GiB", wait=60).id, flush=True)
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
    places = {
        "SENTINEL_SOCKET": str(socket),
        "STATE_DIRECTORY": str(tmp_path),
        "LOGS_DIRECTORY": str(tmp_path),
    }
    with real.sentinel(1, *FLAGS, api=True, environment=places) as one:
        one.wait_for("stressor.ready", gpu=0)
        yield one, connect(socket)


def program(real: RealHost, code: str, *words: str) -> subprocess.Popen[str]:
    environment = real.environment(CUDA_VISIBLE_DEVICES=real.uuid(0))
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def answer(process: subprocess.Popen[str], *, go: bool = True) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    if go:
        process.stdin.write("\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


def beside(client: Client) -> bool:
    """Return whether a stressor runs that knows of its guest."""
    gpu = client.status().gpus[0]
    return gpu.occupied and bool(gpu.allocated_processes)


def first(client: Client) -> GpuStatus:
    return client.status().gpus[0]


def test_an_allocation_is_usable_beside_a_stressor_and_a_newcomer_gets_all_memory(
    real: RealHost, served: tuple[SentinelProcess, Client]
) -> None:
    """40 GiB of an H200 with 140, and as much of other cards; and its child has a context, too."""
    _, client = served
    size = min(40.0, round(real.total() / GIB * 0.3))
    with program(real, GUEST, str(client.address.socket), f"{size:g}", TAKES) as guest:
        try:
            assert answer(guest, go=False) == "guest"
            assert real.total() - real.held() >= size * GIB
            assert answer(guest) == "got"
            eventually(lambda: beside(client))
            assert answer(guest) == "got"
            now = first(client)
            assert (now.occupied, now.yields) == (True, 0)
            assert now.memory_foreign is not None
            assert size * GIB <= now.memory_foreign <= (size + 2) * GIB
            with program(real, TAKES, f"{real.total() / GIB * 0.55:g}") as stranger:
                try:
                    assert answer(stranger) == "got"  # though a stressor was there
                    eventually(lambda: first(client).yields == 1)
                finally:
                    stranger.kill()
            eventually(lambda: beside(client))
        finally:
            guest.kill()
    eventually(lambda: client.status().allocations == ())
    eventually(lambda: first(client).occupied)


def test_a_process_without_an_allocation_makes_the_stressor_yield(
    real: RealHost, served: tuple[SentinelProcess, Client]
) -> None:
    _, client = served
    with program(real, TAKES, f"{real.total() / GIB * 0.9:g}") as stranger:
        try:
            assert answer(stranger) == "got"
        finally:
            stranger.kill()
    eventually(lambda: first(client).yields == 1)


def test_health_follows_the_thresholds_that_the_gpu_declares(
    served: tuple[SentinelProcess, Client],
) -> None:
    _, client = served
    eventually(lambda: first(client).telemetry is not None)
    gpu = first(client)
    assert gpu.telemetry is not None
    told = gpu.telemetry
    assert gpu.health in {"optimal", "normal", "throttled"}
    for known in (told.temperature_c, told.power_limit_w, told.sm_clock_mhz, told.memory_clock_mhz):
        assert known is not None
        assert known > 0
    assert told.power_w is not None
    assert 0 < told.power_w <= (told.power_limit_w or 0) * 1.1
    if told.slowdown_c is not None and told.temperature_c is not None:
        assert told.temperature_c < told.slowdown_c
