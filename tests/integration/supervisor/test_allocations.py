"""The whole daemon: allocations by real processes, and health and recovery of a GPU."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
from collections.abc import Iterator

import pytest

import sentinel
from sentinel.errors import ConflictError
from sentinel.host.simulation import DEFAULT_TOTAL
from sentinel.protocol.api_types import GpuStatus
from tests.harness.daemon_harness import Daemon, read_line, write_line
from tests.harness.gpu_environment import ROOT
from tests.harness.programs import piped_program, run_program
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

GIB = 2**30

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]


def test_memory_is_allocated_beside_the_stressor_and_allocated_processes_are_no_newcomers(
    daemon: Daemon, job: subprocess.Popen[str]
) -> None:
    host = daemon.host
    daemon.start(1, "--memory", "50%")
    daemon.wait_until_occupied(0)
    before = daemon.gpu()
    assert send_command(job, "promise llm 2") == "llm"
    assert daemon.client.available(0) == before.budget - 3 * GIB  # and a context
    with pytest.raises(ConflictError, match="llm"):
        daemon.client.allocate("llm", "1B")
    assert "2.0 GiB allocated as llm for python" in daemon.run("status")
    assert send_command(job, "child 2") == "0", "the child got the whole allocation"
    after = daemon.gpu()
    assert (after.pid, after.yields) == (before.pid, before.yields)
    # More than is free beside the stressor is allocated as well.
    assert send_command(job, "promise more 10") == "more"
    assert host.total() - host.held() >= 10 * GIB
    assert daemon.gpu().pid != before.pid
    job.kill()
    # The allocation ends with its process, however that exits.
    eventually(lambda: daemon.client.allocations() == ())

    daemon.run("allocate", "shell", "2GiB", "--gpus", "0")
    assert json.loads(daemon.run("status", "--json"))["allocations"][0]["id"] == "shell"
    assert "has ended" in daemon.run("allocate", "--cancel", "shell")
    too_much = daemon.run_unchecked("allocate", "shell", "16GiB")
    assert (too_much.code, too_much.out) == (1, "")
    assert "GiB can be allocated" in too_much.err


def test_the_example_works_through_its_jobs_without_a_daemon(daemon: Daemon) -> None:
    example = ROOT / "examples" / "monitor" / "monitor.py"
    done = run_program(sys.executable, example, "--simulate", "1", "--jobs", "2", check=True)
    assert done.stdout.splitlines() == [
        "1 GiB of GPU 0 are allocated",
        "job 0: a batch of 32",
        "job 1: a batch of 32",
        "done, 0 errors in callbacks",
    ]
    first = f"set -o pipefail; {sys.executable} -u {example} --simulate 1 | head -1"
    piped = run_program("bash", "-c", first, check=True)
    assert (piped.stdout, piped.stderr) == ("1 GiB of GPU 0 are allocated\n", "")


#: A program that allocates memory, takes it on request, alone or in a child, and prints a result.
ALLOCATING_JOB = """
import subprocess, sys
import sentinel
from sentinel.host.simulation import Registry, default_folder

GIB = 2**30
registry = Registry(default_folder())
gpu = registry.gpus()[0].uuid
here = None
for line in sys.stdin:
    word, *names, size = line.split()
    if word == "promise":
        print(sentinel.connect().allocate(names[0], size + "GiB").id, flush=True)
    elif word == "return":
        print(sentinel.connect().cancel_allocation(size).gpus, flush=True)
    elif word == "take":
        here = here or registry.attach(gpu)
        print(here.allocate(int(float(size) * GIB)), flush=True)
    elif word == "child":
        print(subprocess.run([sys.executable, "-c", sys.argv[1], size]).returncode, flush=True)
"""
CHILD = """
import sys, time
from sentinel.host.simulation import Registry, default_folder
registry = Registry(default_folder())
here = registry.attach(registry.gpus()[0].uuid)
ok = here.allocate(int(float(sys.argv[1]) * 2**30))
time.sleep(0.3)  # until it has been listed and read
sys.exit(0 if ok else 1)
"""


@pytest.fixture
def job(daemon: Daemon) -> Iterator[subprocess.Popen[str]]:
    del daemon
    with piped_program(
        sys.executable, "-c", ALLOCATING_JOB, CHILD, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def send_command(job: subprocess.Popen[str], command: str) -> str:
    write_line(job, command)
    return read_line(job)


def test_a_hot_gpu_is_released_and_occupied_again_after_cooling(daemon: Daemon) -> None:
    registry, uuid = daemon.host.registry, daemon.host.uuid(0)
    daemon.start(2, "--throttle", "full", "--cooldown", "300ms", "--critical-pause", "500ms")
    daemon.wait_until_occupied(0, 1)
    registry.warm(uuid, 76)
    eventually(lambda: daemon.gpu().health == "throttled" and daemon.gpu().share == 0.5)
    assert daemon.gpu().multiplier == 0.5
    assert daemon.gpu(1).health in {"optimal", "normal"}
    registry.warm(uuid, 91)
    eventually(lambda: daemon.gpu().health == "critical" and daemon.host.empty(0))
    eventually(lambda: daemon.gpu().rule == "throttle.pace")
    assert daemon.gpu().multiplier == 0.0
    eventually(lambda: _told(daemon) == 91)
    registry.warm(uuid, 40)
    daemon.wait_for_stressor(0)
    log = daemon.run("logs", "-n", "100")
    assert "critical at 91 C" in log
    assert "overheat" in log


def test_a_callback_gets_the_gpu_as_it_is_after_the_event(daemon: Daemon) -> None:
    registry, uuid = daemon.host.registry, daemon.host.uuid(0)
    daemon.start(1, "--throttle", "full", "--cooldown", "100ms")
    daemon.wait_until_occupied(0)
    calls: queue.Queue[tuple[object, object]] = queue.Queue()
    with sentinel.Monitor() as monitor:
        monitor.on(
            "state_change", lambda gpu, event: calls.put((event.fields["health"], gpu.health))
        )
        monitor.on(
            "handed_over", lambda gpu, event: calls.put((event.fields["evidence"], _evidence(gpu)))
        )
        monitor.start()
        for degrees in 3 * (80, 40):
            registry.warm(uuid, degrees)
            event, state = calls.get(timeout=TIMEOUT_S)
            assert event == state
        with daemon.host.job(stay=0.1):
            event, state = calls.get(timeout=TIMEOUT_S)
            assert event == state


def _evidence(gpu: GpuStatus) -> str | None:
    return None if gpu.handover is None else gpu.handover.evidence


def test_allocated_memory_is_available_beside_a_running_stressor(
    daemon: Daemon, job: subprocess.Popen[str]
) -> None:
    daemon.start(1, "--memory", "70%")  # beside the allocation, room for more
    daemon.wait_until_occupied(0)
    first = daemon.gpu()
    assert first.held is not None
    assert first.held > DEFAULT_TOTAL // 2
    assert send_command(job, "promise llm 4") == "llm"
    assert daemon.host.held(0) <= DEFAULT_TOTAL - 4 * GIB
    (allocation,) = daemon.client.status().allocations
    assert (allocation.id, allocation.size, allocation.holder.pid) == ("llm", 4 * GIB, job.pid)
    assert send_command(job, "take 4") == "True"
    eventually(lambda: daemon.gpu().stressor == "RUNNING")
    assert send_command(job, "child 0.5") == "0"
    eventually(lambda: job.pid in [one.pid for one in daemon.gpu().allocated_processes])
    beside = daemon.gpu()
    assert (beside.stressor, beside.yields) == ("RUNNING", 0)
    # More than the room beside the stressor is refused by the driver, which leaves no trace.
    assert send_command(job, "take 8") == "False"
    assert (daemon.gpu().pid, daemon.gpu().yields) == (beside.pid, 0)
    # A process that has grown above its allocation and a context is a newcomer, and gets the GPU.
    write_line(job, "take 1.9")
    eventually(lambda: daemon.gpu().yields == 1)
    job.kill()
    job.wait(TIMEOUT_S)
    eventually(lambda: daemon.client.status().allocations == ())
    daemon.wait_until_occupied(0)


def test_a_process_that_returns_its_allocation_gets_the_whole_gpu(
    daemon: Daemon, job: subprocess.Popen[str]
) -> None:
    daemon.start(1)
    daemon.wait_until_occupied(0)
    assert send_command(job, "promise llm 4") == "llm"
    assert send_command(job, "take 2") == "True"
    eventually(lambda: daemon.gpu().stressor == "RUNNING")
    assert send_command(job, "take 12") == "False"
    send_command(job, "return llm")
    eventually(lambda: daemon.gpu().yields == 1)
    eventually(lambda: daemon.gpu().handover is not None and daemon.gpu().stressor == "STOPPED")
    assert send_command(job, "take 12") == "True"


def _told(daemon: Daemon) -> int | None:
    telemetry = daemon.gpu().telemetry
    return None if telemetry is None else telemetry.temperature_c
