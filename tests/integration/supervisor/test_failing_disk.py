"""A disk that fails or is slow stops no hand-over, and what cannot be stored is reported."""

from __future__ import annotations

import errno
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from sentinel.protocol.history_types import PastEvent
from tests.harness.daemon_harness import Daemon
from tests.harness.fake_nvml import NEEDS_COMPILER, shared_folder
from tests.harness.preloaded import FailingDisk
from tests.harness.sentinel_process import eventually

#: What fails while the daemon runs, and the subject of the warning, if anything is lost.
FAULTS = {
    f"write /history.db {errno.EIO}": "history",
    f"fsync /history.db {errno.EIO}": "",  # what is written is not synchronised at once
    "fsync /history.db slow": "",
    f"write /sentinel.log {errno.ENOSPC}": "log",
    "write /sentinel.log slow": "",
}
#: Makes the state folder read-only for a while.
ReadOnly = Callable[[], AbstractContextManager[None]]

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch"), NEEDS_COMPILER]


@pytest.fixture
def disk(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> FailingDisk:
    return FailingDisk(tmp_path, shared_folder(tmp_path_factory))


@pytest.fixture
def daemon(daemon: Daemon, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    for name, text in disk.environment.items():
        monkeypatch.setenv(name, text)
    return daemon


def stored_events(daemon: Daemon) -> set[str]:
    """List the names of the events in the file of the history."""
    with closing(sqlite3.connect(f"file:{daemon.places.state}/history.db?mode=ro")) as file:
        return {name for (name,) in file.execute("SELECT name FROM events")}


def warnings_about(daemon: Daemon, about: str) -> list[PastEvent]:
    """List the recorded warnings about a subject."""
    found = daemon.client.recorded_events(name="service.warning")
    return [one for one in found if one.fields["about"] == about]


@pytest.mark.parametrize("fault", FAULTS)
def test_gpus_are_yielded_and_held_while_a_disk_fails(
    daemon: Daemon, disk: FailingDisk, fault: str
) -> None:
    about = FAULTS[fault]
    daemon.start(1)
    daemon.wait_until_occupied(0)
    disk.set(fault)
    with daemon.host.job(stay=0.1) as job:
        assert job.got_memory()
        job.wait_for_exit()
    daemon.wait_until_occupied(0)
    if about:
        eventually(lambda: warnings_about(daemon, about))
    daemon.run("reserve", "--gpus", "0", "--for", "1h")
    disk.set()
    daemon.run("reserve", "--cancel", "all")
    daemon.wait_until_occupied(0)
    if about == "log":
        eventually(lambda: '"event": "log.dropped"' in daemon.places.log.read_text())
    eventually(lambda: {"gpu.yielding", "gpu.reserved"} <= stored_events(daemon))


@pytest.fixture
def read_only(disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReadOnly:
    """Provide a state folder that can become read-only, as the kernel makes a disk with errors."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    monkeypatch.setenv("STATE_DIRECTORY", str(state))

    @contextmanager
    def read_only() -> Iterator[None]:
        bind = ["mount", "--bind", str(state), str(state)]
        if subprocess.run(bind, capture_output=True, check=False).returncode != 0:
            pytest.skip("needs to mount a file system")
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(state)], check=True)
            disk.set(*(f"{call} {state} {errno.EROFS}" for call in ("write", "fsync", "rename")))
            yield
        finally:
            disk.set()
            subprocess.run(["umount", "--lazy", str(state)], check=True)

    return read_only


def test_a_state_folder_that_becomes_read_only_costs_no_gpu_and_no_truth(
    daemon: Daemon, tmp_path: Path, read_only: ReadOnly
) -> None:
    log = tmp_path / "state" / "sentinel.log"
    daemon.start(2)
    daemon.wait_until_occupied(0, 1)
    daemon.run("reserve", "--gpus", "1", "--for", "1h", "--reason", "kept")
    with read_only():
        with daemon.host.job(stay=0.1) as job:
            assert job.got_memory()
            job.wait_for_exit()
        daemon.wait_until_occupied(0)
        refused = daemon.run_unchecked("reserve", "--gpus", "0", "--for", "1h")
        assert refused.code != 0
        assert "Read-only file system" in refused.err
        assert [held.reason for held in daemon.client.reservations()] == ["kept"]
        daemon.wait_until_occupied(0)
        eventually(lambda: warnings_about(daemon, "log"))
        again = daemon.run_unchecked("start", "--simulate", "2")
        assert "Read-only" not in again.out + again.err, "the daemon that runs is found"
    daemon.run("reserve", "--gpus", "0", "--for", "1h", "--reason", "later")
    eventually(lambda: '"event": "log.dropped"' in log.read_text())
    daemon.kill()
    daemon.start(2)
    assert {held.reason for held in daemon.client.reservations()} == {"kept", "later"}


def test_a_token_that_could_not_be_stored_is_created_by_the_next_daemon(
    daemon: Daemon, disk: FailingDisk
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        tcp = ("--tcp", str(probe.getsockname()[1]))
    disk.set(f"write /token {errno.ENOSPC}")
    daemon.start(1, *tcp)
    eventually(lambda: warnings_about(daemon, "token"))
    assert not daemon.places.token.exists()
    daemon.run("stop")
    disk.set()
    daemon.start(1, *tcp)
    assert len(daemon.places.token.read_text()) > 32
    assert not warnings_about(daemon, "token")[2:]
