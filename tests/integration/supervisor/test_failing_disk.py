"""A disk that fails or is slow stops no hand-over, and what cannot be stored is reported."""

from __future__ import annotations

import errno
import socket
import sqlite3
from contextlib import closing
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
