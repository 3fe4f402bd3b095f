"""Commands, library, agents and scripts against a real daemon on simulated GPUs, first to last."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psutil
import pytest

import sentinel
from sentinel.errors import ConflictError, GpuHeldError, NoSuchGpuError, NotRunningError
from sentinel.host.procfs import read_stat
from sentinel.host.simulation import Registry
from tests.harness.timing import TIMEOUT_S

ROOT = Path(__file__).parents[2]
#: A workload that is not that of ``FLAGS``, and as easy.
OTHER = "bad_workloads:well_behaved"
FLAGS = ("--workload", "hold", "--rearm", "300ms", "--poll", "100ms", "--status-every", "1s")

pytestmark = pytest.mark.usefixtures("fake_torch")


class Here:
    """A daemon of its own on two simulated GPUs, and the commands that talk to it."""

    def __init__(self, folder: Path) -> None:
        self.registry = Registry(folder)
        self.socket = folder / "sentinel.sock"
        others = ("CUDA_", "SENTINEL_")
        mine = {name: text for name, text in os.environ.items() if not name.startswith(others)}
        self.environment = mine | {
            "SENTINEL_SIM_DIR": str(folder),
            "SENTINEL_CONFIG": os.devnull,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command to its end, and return its standard output."""
        done = subprocess.run(
            [sys.executable, "-m", "sentinel", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Run a command, and return it while it runs."""
        command = [sys.executable, "-m", "sentinel", *words]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def client(self) -> sentinel.Client:
        return sentinel.connect(self.socket, timeout=30.0)

    def held(self, gpu: int) -> bool:
        return self.registry.memory(self.registry.gpus()[gpu].uuid).used > 2**30

    def occupied(self) -> None:
        """Wait until both GPUs are."""
        within(lambda: all(gpu.occupied for gpu in self.client().status().gpus))


def within(true: Callable[[], object]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not true():
        assert time.monotonic() < until, "it did not become true"
        time.sleep(0.05)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    one = Here(tmp_path)
    one.run("start", "--simulate", "2", *FLAGS)
    pid = one.client().status().daemon.pid
    family = psutil.Process(pid).children(recursive=True)
    try:
        one.occupied()
        family = psutil.Process(pid).children(recursive=True)
        yield one
    finally:
        stat = read_stat(pid)
        if stat is not None and stat.alive:
            os.kill(pid, signal.SIGTERM)
        within(lambda: all((s := read_stat(p.pid)) is None or not s.alive for p in family))
        within(lambda: (stat := read_stat(pid)) is None or not stat.alive)


def test_gpus_are_let_go_of_on_request_and_taken_again(here: Here) -> None:
    assert "occupied" in here.run("status")
    here.run("pause", "0", "--for", "10m")
    assert (here.held(0), here.held(1)) == (False, True)
    assert "paused for another" in here.run("status")
    here.run("resume", "0")
    here.occupied()
    here.run("stop")
    assert not here.held(0)
    assert not here.held(1)
    here.run("restart", *FLAGS, "--workload", OTHER)
    here.occupied()
    status = json.loads(here.run("status", "--json"))
    assert (status["running"], status["gpus"][0]["workload"]) == (True, OTHER)
    here.run("reload")
    here.run("restart", *FLAGS, "--util", "900%", code=2)
    here.run("pause", "9", code=4)
    pid = here.client().status().daemon.pid
    here.run("shutdown")
    stat = read_stat(pid)
    assert stat is None or not stat.alive
    here.run("status", code=3)
    assert "stopped" in here.run("logs")


def test_what_is_reserved_is_free_when_its_uuid_is_printed(here: Here) -> None:
    uuid = here.run("reserve", "--gpu", "1", "--for", "1h", "--reason", "demo").strip()
    assert uuid == here.registry.gpus()[1].uuid
    assert not here.held(1)
    assert "demo" in here.run("reservations")
    here.run("reserve", "--gpu", "1", "--for", "1m", "--wait", "0", code=1)
    here.run("unreserve", "--all-mine")
    here.occupied()


def test_the_library_has_the_same_verbs(here: Here) -> None:
    client = here.client()
    events = client.events()
    with pytest.raises(NoSuchGpuError):
        client.gpu(9)
    assert client.health()
    got = client.reserve([0], reason="library", seconds=60)
    assert not here.held(0)
    with pytest.raises(ConflictError, match="library"):
        client.reserve([0], seconds=60, wait=0)
    assert next(events).name
    events.close()
    assert client.unreserve(got.id).gpus == got.gpus
    client.shutdown()
    with pytest.raises(NotRunningError):
        client.status()


def test_a_reservation_ends_with_its_command_however_that_ends(here: Here) -> None:
    assert here.registry.gpus()[0].uuid in here.run(
        "exec", "--gpu", "0", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 5", code=5
    )
    within(lambda: not here.client().reservations())
    with here.begin("exec", "--gpus", "2", "--", "sh", "-c", "echo on; exec sleep 600") as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "on\n"
        (one,) = here.client().reservations()
        assert (one.bound, one.holder.pid) == (True, job.pid)
        assert not here.held(0)
        job.kill()
    within(lambda: not here.client().reservations())
    here.occupied()


def test_a_command_does_not_notice_that_the_daemon_dies(here: Here) -> None:
    with here.begin("exec", "--gpus", "1", "--", "sh", "-c", "echo on; exec sleep 600") as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "on\n"
        os.kill(here.client().status().daemon.pid, signal.SIGKILL)
        within(lambda: not here.held(0) and not here.held(1))
        assert job.poll() is None
        job.terminate()
        assert job.wait(TIMEOUT_S) == -signal.SIGTERM


def test_the_log_is_followed(here: Here) -> None:
    with here.begin("logs", "-f", "-n", "0") as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline(), "a status, each second: it has found the end"
        here.run("pause", "1")
        assert any("paused" in line for line in islice(follower.stdout, 10))
        follower.kill()


# --- sentinel mcp ----------------------------------------------------------------------------


def test_an_agent_sees_gpus_and_has_them_kept_free(here: Here) -> None:
    anyio.run(_be_an_agent, here)


async def _be_an_agent(here: Here) -> None:
    import mcp  # which takes most of a second, where this test runs and nowhere else
    from mcp.client.stdio import StdioServerParameters

    own = StdioServerParameters(
        command=sys.executable, args=["-m", "sentinel", "mcp"], env=here.environment
    )
    async with mcp.Client(own, read_timeout_seconds=TIMEOUT_S) as agent:

        async def call(tool: str, **given: Any) -> dict[str, Any]:
            done = await agent.call_tool(tool, given)
            assert not done.is_error, done.content
            assert isinstance(done.structured_content, dict)
            return done.structured_content

        async def refused(tool: str, **given: Any) -> str:
            done = await agent.call_tool(tool, given)
            assert done.is_error
            return str(done.content)

        tools = {tool.name: tool for tool in (await agent.list_tools()).tools}
        assert list(tools) == ["status", "pause", "resume", "reserve", "unreserve"]
        assert all(tool.description for tool in tools.values())
        assert tools["reserve"].input_schema["required"] == ["seconds", "reason"]
        assert [gpu["stressor"] for gpu in (await call("status"))["gpus"]] == ["RUNNING"] * 2
        (one,) = (await call("status", gpu=1))["gpus"]
        assert one["uuid"] == here.registry.gpus()[1].uuid

        got = await call("reserve", gpus=["0"], seconds=600, reason="an agent's run")
        assert got["gpus"] == [here.registry.gpus()[0].uuid]
        assert (here.held(0), here.held(1)) == (False, True)
        assert "an agent's run" in await anyio.to_thread.run_sync(here.run, "reservations")
        again = {"gpus": ["0"], "seconds": 60, "reason": "again", "wait_s": 0}
        assert "an agent's run" in await refused("reserve", **again)
        await call("unreserve", id=got["id"])
        assert (await call("status"))["reservations"] == []

        await call("pause", gpus=[1], seconds=60)
        assert not here.held(1)
        await call("resume", gpus=[1])
        assert "no GPU matches '9'" in await refused("pause", gpus=[9])
        assert "how many GPUs" in await refused("reserve", seconds=60, reason="none")
        assert "less than or equal to 45" in await refused("pause", wait_s=900)
        assert "less than or equal to 604800" in await refused("pause", seconds=1e6)
        assert "at least 1 item" in await refused("pause", gpus=[])  # which would mean all


# --- sentinel.hold ---------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    """Return a place without a daemon."""
    here = Here(tmp_path)
    for name in ("SENTINEL_SIM_DIR", "SENTINEL_CONFIG", "PYTHONPATH"):
        monkeypatch.setenv(name, here.environment[name])
    return here


def test_a_script_holds_gpus_and_lets_go(alone: Here) -> None:
    with sentinel.hold(gpus=[1], memory="50%", simulate=2) as held:
        status = held.wait_held(TIMEOUT_S)
        assert [gpu.index for gpu in status.gpus] == [1]
        assert (alone.held(0), alone.held(1)) == (False, True)
        with sentinel.hold(gpus=[1], simulate=2) as second, pytest.raises(GpuHeldError):
            second.wait_held(TIMEOUT_S)
    assert not alone.held(1)


def test_a_script_that_is_killed_leaves_nothing_held(alone: Here) -> None:
    program = (
        "import sentinel, time\n"
        "with sentinel.hold(simulate=1) as held:\n"
        "    held.wait_held(60)\n"
        "    print('held', flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, env=alone.environment, stdout=subprocess.PIPE, text=True
    ) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "held\n"
        script.kill()
    within(lambda: not alone.held(0))


def test_the_example_works_as_it_stands(alone: Here) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/hold/hold.py"), "--simulate", "1", "--seconds", "1"],
        env=alone.environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert done.stdout.splitlines()[1:] == ["still held", "let go"]


# --- sentinel.supervise ----------------------------------------------------------------------


def test_a_program_with_a_supervisor_in_it_hands_over(alone: Here) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/embedded/embedded.py")],
        env=alone.environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "GPU 0 was handed over",
        "exit code 0, hand-overs: 1",
    ]
    assert not alone.held(0)
    assert not alone.held(1)
