"""The daemons of root and of another user on the same GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.harness.daemon_harness import QUICK
from tests.harness.gpu_environment import SimulatedHost, replace_torch
from tests.harness.isolation import STRANGER, needs_root, public_host, run_as
from tests.harness.sentinel_process import eventually, gone

pytestmark = [pytest.mark.long, needs_root]


@dataclass(frozen=True)
class Owner:
    """A user, and the folder of this user's daemon.

    Args:
        host: The GPUs, which both users share.
        uid: The user.
        folder: The folder of the socket and the state.
    """

    host: SimulatedHost
    uid: int
    folder: Path

    def sentinel(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command as this user."""
        more = {
            "SENTINEL_SOCKET": str(self.folder / "sock"),
            "STATE_DIRECTORY": str(self.folder),
            "HOME": str(self.folder),
        }
        command = [sys.executable, "-m", "sentinel", *words]
        return run_as(self.uid, command, self.host.environment(**more))

    def start(self, *flags: str) -> subprocess.CompletedProcess[str]:
        """Start this user's daemon on both GPUs, unless the flags choose others."""
        return self.sentinel("start", "--simulate", "2", *QUICK, *flags)

    def status(self) -> dict[str, Any]:
        """Read the status of this user's daemon."""
        status: dict[str, Any] = json.loads(self.sentinel("status", "--json").stdout)
        return status

    def pid(self) -> int:
        """Read the PID of this user's daemon."""
        return int(self.status()["daemon"]["pid"])

    def stressor(self) -> str:
        """Read the state of the stressor on the first GPU."""
        return str(self.status()["gpus"][0]["stressor"])

    def holds(self, *indices: int) -> bool:
        """Check that exactly these GPUs have a process, which is a stressor of this user."""
        return holders(self.host) == dict.fromkeys(indices, self.uid)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Read the events of a name from this user's log."""
        lines = (self.folder / "sentinel.log").read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if event["event"] == name]


def pids_on(host: SimulatedHost, gpu: int) -> set[int]:
    """List the processes on a GPU."""
    return {process.pid for process in host.registry.processes(host.uuid(gpu))}


def holders(host: SimulatedHost) -> dict[int, int]:
    """Find the user of the process on each GPU; a GPU must have at most one."""
    found: dict[int, int] = {}
    for gpu in range(2):
        pids = pids_on(host, gpu)
        if len(pids) > 1:  # a list is not of one moment: the first may have ended meanwhile
            pids &= pids_on(host, gpu)
        assert len(pids) <= 1, f"GPU {gpu} is held by {pids}"
        with suppress(psutil.NoSuchProcess):
            found.update((gpu, psutil.Process(pid).uids().real) for pid in pids)
    return found


SHARED_GPUS = """
from sentinel.host import paths

paths.check_own_simulation = lambda _: None
"""


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Owner, Owner]]:
    """Provide root and the other user; their daemons end with the test."""
    with public_host(2) as host, ExitStack() as stack:
        replace_torch(host.folder.parent, monkeypatch)
        # Real GPUs belong to no user; simulated ones would be refused to the other.
        (host.folder.parent / "fake_torch" / "sitecustomize.py").write_text(SHARED_GPUS)
        locks = host.folder / "locks"
        locks.mkdir()
        locks.chmod(0o1777)
        found = []
        for uid in (0, STRANGER):
            folder = host.folder.parent / f"of-{uid}"
            folder.mkdir()
            os.chown(folder, uid, uid)
            folder.chmod(0o755)
            found.append(Owner(host, uid, folder))
            stack.callback(found[-1].sentinel, "stop")
        yield found[0], found[1]


def test_the_sentinel_of_another_user_leaves_the_gpus_of_root_alone(
    owners: tuple[Owner, Owner],
) -> None:
    root, other = owners
    assert root.start("--gpus", "0").returncode == 0
    eventually(lambda: root.holds(0))
    assert other.start().returncode == 0
    (said,) = other.events("gpu.held_elsewhere")
    assert (said["index"], said["used"]) == (0, False)
    assert said["holder"].startswith(f"pid {root.pid()} of uid 0 since ")
    assert other.sentinel("status").returncode == 0

    # Each finds the own daemon, and the other user cannot end that of root.
    daemon = psutil.Process(root.pid())
    assert daemon.pid != other.pid()
    refused = other.sentinel("stop", "--socket", str(root.folder / "sock"))
    assert refused.returncode == 4, refused
    assert other.sentinel("stop").returncode == 0
    assert root.pid() == daemon.pid
    eventually(lambda: root.holds(0))

    full = other.start("--gpus", "0")
    assert full.returncode == 75
    assert f"is held by another sentinel: pid {daemon.pid} of uid 0" in full.stderr
    assert root.sentinel("stop").returncode == 0
    eventually(lambda: gone(daemon))
    assert other.start().returncode == 0
    eventually(lambda: other.holds(0, 1))


@pytest.mark.parametrize("locks", ["of root", "of the other user", "missing"])
def test_root_waits_until_the_sentinel_of_another_user_ends(
    owners: tuple[Owner, Owner], locks: str
) -> None:
    """The shared folder belongs to the first user, or cannot be created."""
    root, other = owners
    folder = root.host.folder / "locks"
    if locks == "of the other user":
        os.chown(folder, STRANGER, STRANGER)
    elif locks == "missing":
        folder.rmdir()
        folder.write_text("")
    assert other.start().returncode == 0
    eventually(lambda: other.holds(0, 1))
    assert root.start().returncode == 0
    said = root.events("gpu.held_elsewhere")
    if locks == "missing":
        assert said == []
    else:
        assert [(one["index"], one["used"]) for one in said] == [(0, True), (1, True)]
        assert {one["holder"].split(" since ")[0] for one in said} == {
            f"pid {other.pid()} of uid 65534"
        }
    assert other.holds(0, 1)
    assert not root.events("stressor.starting")
    assert [gpu["occupancy"] for gpu in root.status()["gpus"]] == ["BUSY", "BUSY"]

    with root.host.job(0, stay=0.3) as job:
        assert job.got_memory()
        job.wait_for_exit()
    # Both start a stressor, and one of them yields.
    eventually(lambda: [owner.stressor() for owner in owners].count("RUNNING") == 1)
    eventually(lambda: [len(pids_on(root.host, gpu)) for gpu in range(2)] == [1, 1])

    assert other.sentinel("stop").returncode == 0
    eventually(lambda: root.holds(0, 1))
