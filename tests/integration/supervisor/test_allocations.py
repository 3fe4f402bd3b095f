"""Memory is allocated beside a stressor, to a process and its children."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sentinel.errors import ConflictError
from tests.harness.daemon_harness import Daemon, read_line, write_line
from tests.harness.gpu_environment import ROOT
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

GIB = 2**30

pytestmark = pytest.mark.usefixtures("fake_torch")

#: A program that allocates memory, uses it in a child, and allocates more than is free.
PROGRAM = """
import subprocess, sys, sentinel
client = sentinel.connect()
with client.allocation("llm", "2GiB", gpu=0) as got:
    print(got.id, client.available(0), flush=True)
    job = [sys.executable, "-m", "sentinel", "demo", "job", "--memory", "2GiB", "--for", "500ms"]
    done = subprocess.run([*job, "--json"], capture_output=True, text=True)
    print(done.returncode, flush=True)
    input()
    client.allocate("more", "10GiB")
    print("more", flush=True)
    input()
"""


@pytest.mark.long
def test_memory_is_allocated_beside_the_stressor_and_allocated_processes_are_no_newcomers(
    daemon: Daemon,
) -> None:
    host = daemon.host
    daemon.start(1, "--memory", "50%")
    daemon.wait_until_occupied(0)
    before = daemon.gpu()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as program:
        try:
            name, left = read_line(program).split()
            assert (name, int(left)) == ("llm", before.budget - 3 * GIB)  # and a context
            with pytest.raises(ConflictError, match="llm"):
                daemon.client.allocate("llm", "1B")
            assert "2.0 GiB allocated as llm for python" in daemon.run("status")
            assert read_line(program) == "0"  # the child got the whole allocation
            after = daemon.gpu()
            assert (after.pid, after.yields) == (before.pid, before.yields)
            # More than is free beside the stressor is allocated as well.
            write_line(program, "")
            assert read_line(program) == "more"
            assert host.total() - host.held() >= 10 * GIB
            assert daemon.gpu().pid != before.pid
        finally:
            program.kill()
    # The allocation ends with its process, however that exits.
    eventually(lambda: daemon.client.allocations() == ())

    daemon.run("allocate", "shell", "2GiB", "--gpus", "0")
    assert json.loads(daemon.run("status", "--json"))["allocations"][0]["id"] == "shell"
    assert "is over" in daemon.run("allocate", "--cancel", "shell")
    too_much = daemon.run_unchecked("allocate", "shell", "16GiB")
    assert (too_much.code, too_much.out) == (1, "")
    assert "GiB can be allocated" in too_much.err


@pytest.mark.long
def test_the_example_works_through_its_jobs_without_a_daemon(daemon: Daemon) -> None:
    example = ROOT / "examples" / "monitor" / "monitor.py"
    output = subprocess.run(
        [sys.executable, example, "--simulate", "1", "--jobs", "2"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    ).stdout
    assert output.splitlines() == [
        "1 GiB of GPU 0 are allocated",
        "job 0: a batch of 32",
        "job 1: a batch of 32",
        "done, 0 errors in callbacks",
    ]
