"""A disk that fails or is slow stops no hand-over, and what cannot be stored is reported."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from sentinel.protocol.history_types import PastEvent
from tests.harness.daemon_harness import QUICK, Daemon
from tests.harness.fake_nvml import NEEDS_COMPILER, shared_folder
from tests.harness.given_settings import shown
from tests.harness.gpu_environment import SimulatedHost
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
    tcp = ("--tcp", "127.0.0.1:0")
    disk.set(f"write /token {errno.ENOSPC}")
    daemon.start(1, *tcp)
    eventually(lambda: warnings_about(daemon, "token"))
    assert not daemon.places.token.exists()
    daemon.run("stop")
    disk.set()
    daemon.start(1, *tcp)
    assert len(daemon.places.token.read_text()) > 32
    assert not warnings_about(daemon, "token")[2:]


# --- a disk without room, with the socket and the state on it ---------------------------------


@contextmanager
def small_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, options: str) -> Iterator[Daemon]:
    """Mount a file system in memory for the files of a daemon, and end the daemon with it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"{options},mode=700", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs to mount a file system")
    monkeypatch.setenv("SENTINEL_SOCKET", str(folder / "sock"))
    monkeypatch.setenv("STATE_DIRECTORY", str(folder))
    daemon = Daemon(SimulatedHost(folder.parent))
    try:
        yield daemon
    finally:
        daemon.close()
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def leave_room(folder: Path, pages: int) -> None:
    """Fill a file system but for so many pages, also while a daemon writes to it."""
    fill = folder / "fill"

    def filled() -> bool:
        fill.unlink(missing_ok=True)
        free = os.statvfs(folder).f_bavail - pages
        try:
            fill.write_bytes(bytes(free * os.sysconf("SC_PAGESIZE")))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return False  # the daemon has taken some of it meanwhile
        return True

    eventually(filled)


def test_a_start_without_room_for_its_files_is_refused_whole(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for one file more each time, until it starts."""
    host, refusals = daemon.host, 0
    for files in range(2, 20):
        with small_disk(tmp_path / "disk", monkeypatch, f"nr_inodes={files}") as small:
            done = small.run_unchecked("start", "--simulate", "1", "--wait", "0", *QUICK)
            if done.code == 0:
                small.wait_until_occupied(0)
                break
            refusals += 1
            assert done.code == 2
            assert "No space left on device" in done.err
            assert not small.places.socket.exists()
            assert host.empty()
    else:
        pytest.fail("it never starts")
    assert refusals


#: What a client asks for, and what else it is told where that cannot be stored.
COMMANDS = {
    ("reserve", "--gpus", "0", "--for", "1h", "--reason", "new"): None,
    ("reserve", "--cancel", "all"): "has ended, but another daemon would restore it",
    ("session", "start", "train", "--gpus", "0", "memory=50%"): None,
    ("set", "--save", "grace=7s"): None,
}


def known_to(daemon: Daemon) -> list[list[str]]:
    """List what a daemon knows of what clients asked for."""
    status = daemon.client.status()
    settings = shown(daemon.client.request("GET", "/v1/settings"))
    return [
        [str(held.reason) for held in status.reservations],
        [session.name for session in status.sessions],
        [settings["grace"][0]],
    ]


@pytest.mark.parametrize("pages", range(4))
def test_on_a_full_disk_a_command_is_refused_with_the_reason_or_outlives_the_daemon(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    """Also while the next daemon finds the disk as full as the first one left it."""
    host, place = daemon.host, tmp_path / "disk"
    with small_disk(place, monkeypatch, "size=4m") as small:
        small.start(2)
        small.run("reserve", "--gpus", "1", "--for", "1h", "--reason", "kept")
        leave_room(place, pages)
        restored: list[str] = []
        for words, otherwise in COMMANDS.items():
            known, *_ = known_to(small)  # the daemon writes, too, so each may find room or none
            done = small.run_unchecked(*words)
            assert done.code in {0, 2}
            if done.code:
                assert "cannot be written: No space left on device" in done.err
                assert otherwise is None or otherwise in done.err
                restored += known if otherwise else []
        with host.job(0, stay=0.1) as newcomer:
            assert newcomer.got_memory()
        reservations, *others = known_to(small)
        expected = sorted({*reservations, *restored})
        for room in (pages, 500):
            small.kill()
            leave_room(place, room)
            small.start(2)
            found, *rest = known_to(small)
            assert (sorted(found), rest) == (expected, others)
