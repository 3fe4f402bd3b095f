"""One daemon per socket, however the previous one ended."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.errors import AlreadyRunningError, ConfigError, ExitCode
from sentinel.host import registry
from sentinel.host.paths import Places, places
from sentinel.host.registry import read, running
from sentinel.supervisor.single_instance import claim
from tests.harness.narrowing import not_none
from tests.harness.programs import piped_program
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

#: Claims at each line of input, prints the result, and releases at the next line.
CLAIMER = """
    import json, os, subprocess, sys
    from pathlib import Path
    from sentinel.supervisor.single_instance import claim
    from sentinel.errors import SentinelError
    from sentinel.host.paths import places

    where = places({"SENTINEL_SOCKET": sys.argv[1], "STATE_DIRECTORY": sys.argv[2]}, os.getuid())
    for line in sys.stdin:
        try:
            held = claim(where, tcp=sys.argv[3] if len(sys.argv) > 3 else None)
        except SentinelError as error:
            held = None
            print(json.dumps(str(error)), flush=True)
        else:
            child = None
            if line.strip() == "bear":
                child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
            print(json.dumps(child.pid if child else held.address), flush=True)
        sys.stdin.readline()
        if held is not None:
            held.release()
        print(flush=True)
"""


def at(folder: Path) -> Places:
    """Build the paths of a daemon in this folder."""
    return places(
        {"SENTINEL_SOCKET": str(folder / "s.sock"), "STATE_DIRECTORY": str(folder / "state")},
        os.getuid(),
    )


@pytest.fixture
def where(tmp_path: Path) -> Places:
    return at(tmp_path)


@contextmanager
def claimer(folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Run another process that claims these paths on request."""
    code = textwrap.dedent(CLAIMER)
    process = piped_program(
        sys.executable, "-c", code, str(folder / "s.sock"), str(folder / "state"), *more, bufsize=1
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def tell(process: subprocess.Popen[str], word: str = "") -> None:
    not_none(process.stdin).write(f"{word}\n")


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], TIMEOUT_S)[0], "it says nothing"
    return process.stdout.readline().strip()


def connects(path: Path) -> bool:
    """Check whether a socket listens there."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


# --- who wins --------------------------------------------------------------------------------


@pytest.mark.long
def test_one_of_two_concurrent_claims_wins_and_the_other_names_it(tmp_path: Path) -> None:
    with claimer(tmp_path) as one, claimer(tmp_path) as two:
        for turn in range(100):
            pair = (one, two) if turn % 2 else (two, one)
            for process in pair:
                tell(process)
            errors = {process: json.loads(hear(process)) for process in pair}
            (winner,) = [process for process, error in errors.items() if error is None]
            (error,) = [error for error in errors.values() if error is not None]
            assert f"pid {winner.pid} of uid {os.getuid()} since 2" in error
            assert str(tmp_path / "s.sock") in error
            assert connects(tmp_path / "s.sock")
            for process in pair:
                tell(process)
            assert [hear(process) for process in pair] == ["", ""]
            assert not (tmp_path / "s.sock").exists()


def test_a_killed_daemon_is_replaceable_while_its_child_is_alive(tmp_path: Path) -> None:
    with claimer(tmp_path) as first, ExitStack() as cleanup:
        tell(first, "bear")
        child = int(hear(first))
        cleanup.callback(os.kill, child, signal.SIGKILL)
        assert running(at(tmp_path)) == first.pid
        first.kill()
        first.wait(TIMEOUT_S)
        assert (tmp_path / "s.sock").is_socket()
        assert running(at(tmp_path)) is None
        held = claim(at(tmp_path))
        os.kill(child, 0)
        assert connects(tmp_path / "s.sock")
        assert running(at(tmp_path)) == os.getpid()
        held.release()


def test_no_child_inherits_the_claim(tmp_path: Path) -> None:
    held = claim(at(tmp_path), tcp="127.0.0.1:0")
    assert held.tcp is not None
    for file in (not_none(held._entry)._file, held.socket.fileno(), held.tcp.fileno()):
        assert not os.get_inheritable(file)
    held.release()


def test_a_second_daemon_gets_exit_code_75(tmp_path: Path) -> None:
    held = claim(at(tmp_path))
    with pytest.raises(AlreadyRunningError, match=f"pid {os.getpid()} ") as caught:
        claim(at(tmp_path))
    assert caught.value.exit_code is ExitCode.HELD
    assert connects(tmp_path / "s.sock")
    held.release()


def test_the_record_of_a_dead_daemon_is_ignored(where: Places) -> None:
    held = claim(where)
    record = json.loads(where.record.read_text())
    assert record["pid"] == os.getpid()
    assert record["socket"] == str(where.socket)
    record["started"] -= 1
    where.record.write_text(json.dumps(record))
    assert running(where) == 0
    with pytest.raises(AlreadyRunningError, match="not visible from here"):
        claim(where)
    held.release()
    where.record.write_text(json.dumps(record))
    claim(where).release()


def test_a_release_leaves_only_a_record_and_may_be_repeated(where: Places) -> None:
    held = claim(where)
    held.release()
    held.release()
    assert not where.socket.exists()
    record = not_none(read(where.record))
    assert (record.pid, record.alive) == (os.getpid(), False)
    assert running(where) is None


def test_a_release_does_not_remove_the_socket_of_another_daemon(where: Places) -> None:
    held = claim(where)
    assert not held.lost()
    where.socket.unlink()
    assert held.lost()
    where.socket.touch()
    assert held.lost()
    held.release()
    assert where.socket.exists()


def test_a_lock_that_is_removed_between_open_and_flock_is_created_again(
    where: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    really_open = registry._open_own

    def open_and_remove(path: Path) -> int:
        file = really_open(path)
        if not opened:
            path.unlink()
        opened.append(file)
        return file

    monkeypatch.setattr(registry, "_open_own", open_and_remove)
    held = claim(where)
    assert len(opened) == 2
    assert running(where) == os.getpid()
    held.release()


def test_another_daemon_may_start_after_its_folder_was_cleaned(where: Places) -> None:
    first = claim(where)
    where.socket.unlink()
    where.record.unlink()
    second = claim(where)
    first.release()
    assert connects(where.socket)
    second.release()


# --- the socket ------------------------------------------------------------------------------


def test_the_socket_is_private_to_its_owner_with_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        held = claim(at(tmp_path / "new"))
    finally:
        assert os.umask(before) == 0
    assert stat.S_IMODE(held.places.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(held.places.record.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE(held.places.state.stat().st_mode) == 0o700
    held.release()


def test_a_group_can_be_given_access(tmp_path: Path) -> None:
    gid = max(os.getgroups() or [os.getgid()])
    folders = {"RUNTIME_DIRECTORY": str(tmp_path / "run"), "STATE_DIRECTORY": str(tmp_path)}
    ours = places(folders, os.getuid())
    for where in (ours, at(tmp_path / "new")):
        held = claim(where, group=str(gid))
        there = where.socket.stat()
        assert (stat.S_IMODE(there.st_mode), there.st_gid) == (0o660, gid)
        held.release()
    folder = (tmp_path / "run").stat()
    assert (stat.S_IMODE(folder.st_mode), folder.st_gid) == (0o710, gid)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700, "that was not ours to change"


def test_a_missing_group_is_an_error_that_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the group 'no-such-group' .* does not exist"):
        claim(at(tmp_path), group="no-such-group")
    assert not list(tmp_path.iterdir())


def test_a_stale_socket_is_replaced_but_no_other_file(where: Places) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(where.socket))
    assert not connects(where.socket)
    held = claim(where)
    assert connects(where.socket)
    held.release()
    where.socket.write_text("mine")
    with pytest.raises(ConfigError, match=r"the path exists and is not a socket"):
        claim(where)
    assert where.socket.read_text() == "mine"
    assert running(where) is None


def test_both_tcp_sockets_listen_and_their_ports_are_free_after_the_release(where: Places) -> None:
    held = claim(where, tcp="127.0.0.1:0", metrics="127.0.0.1:0")
    assert held.address is not None
    assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", held.address)
    for_scrapes = not_none(held.metrics).getsockname()
    port = int(held.address.rpartition(":")[2])
    assert for_scrapes[1] != port
    for place in (("127.0.0.1", port), for_scrapes):
        socket.create_connection(place).close()
    held.release()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(for_scrapes)
    again = claim(where, tcp=held.address)
    assert again.address == held.address
    again.release()


@pytest.mark.parametrize(
    ("mode", "after"), [(0o700, 0o711), (0o711, 0o711), (0o2750, 0o2750), (0o755, 0o755)]
)
def test_only_a_folder_of_our_own_mode_is_opened_to_every_user(
    tmp_path: Path, mode: int, after: int
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    folder.chmod(mode)
    claim(replace(at(folder), named=False), is_open=True).release()
    assert stat.S_IMODE(folder.stat().st_mode) == after


@pytest.mark.parametrize("flag", ["tcp", "metrics"])
def test_a_port_in_use_is_an_error_that_leaves_no_file(
    where: Places, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    monkeypatch.setattr("sentinel.supervisor.single_instance.PORT_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        address: Any = {flag: f"127.0.0.1:{port}"}
        with pytest.raises(ConfigError, match=f"--{flag}: cannot listen at 127.0.0.1:{port}"):
            claim(where, **address)
    assert not where.socket.exists()
    assert running(where) is None


def test_the_port_of_a_killed_daemon_is_free(tmp_path: Path) -> None:
    with claimer(tmp_path, "127.0.0.1:0") as first:
        tell(first)
        address = json.loads(hear(first))
        first.kill()
        first.wait(TIMEOUT_S)
    held = claim(at(tmp_path), tcp=address)
    assert held.address == address
    held.release()


# --- folders ---------------------------------------------------------------------------------


def test_an_unusable_folder_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for permanently_failed in (Path("/proc/nowhere/x"), tmp_path / "file"):
        with pytest.raises(
            ConfigError, match=f"{permanently_failed} cannot be created.*\nSet SENTINEL_SOCKET"
        ):
            claim(at(permanently_failed))
    with pytest.raises(ConfigError, match=r"/proc.* cannot be"):
        claim(at(Path("/proc")))


def test_an_unusable_state_folder_is_an_error_before_the_sockets_are_bound(tmp_path: Path) -> None:
    environ = {"SENTINEL_SOCKET": str(tmp_path / "s"), "STATE_DIRECTORY": "/proc/nowhere"}
    with pytest.raises(ConfigError, match=r"the folder /proc/nowhere cannot be created"):
        claim(places(environ, os.getuid()))
    assert not (tmp_path / "s").exists()


def test_a_socket_path_that_is_too_long_is_an_error_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at most 107 are allowed"):
        claim(at(tmp_path / ("x" * 100)))
    assert not list(tmp_path.iterdir())


def test_a_lock_behind_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "s.sock.json").symlink_to(tmp_path / "target")
    with pytest.raises(ConfigError, match=r"the lock .* cannot be opened"):
        claim(at(tmp_path))
    assert not (tmp_path / "target").read_bytes()


def ours(folder: Path) -> Places:
    """Build paths in a default folder, as in /tmp."""
    return places({}, os.getuid(), folder)


def test_a_folder_writable_by_other_users_is_made_private(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    claim(ours(folder)).release()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give files away")


@root
def test_a_folder_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    with pytest.raises(ConfigError, match=r"theirs belongs to uid 65534, not to uid 0"):
        claim(ours(folder))
    assert not list(folder.iterdir())


@root
def test_a_link_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    link = tmp_path / "link"
    (tmp_path / "mine").mkdir()
    link.symlink_to(tmp_path / "mine")
    claim(ours(link)).release()
    os.chown(link, 65534, 65534, follow_symlinks=False)
    (tmp_path / "mine").chmod(0o775)
    with pytest.raises(ConfigError, match=r"the link .* belongs to uid 65534"):
        claim(ours(link))
    with pytest.raises(ConfigError, match=r"the link .* belongs to uid 65534"):
        claim(ours(link / "new"))
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o775
    assert not (tmp_path / "mine" / "new").exists()


@root
def test_a_lock_of_another_user_is_not_trusted(where: Places) -> None:
    where.record.touch()
    os.chown(where.record, 65534, 65534)
    with pytest.raises(ConfigError, match=r"the lock .* belongs to uid 65534"):
        claim(where)


def test_a_full_disk_is_an_error_that_leaves_no_file(tiny_disk: Path) -> None:
    (tiny_disk / "fill").write_bytes(bytes(4096))
    where = Places(
        socket=tiny_disk / "s.sock",
        record=tiny_disk / "s.sock.json",
        state=tiny_disk,
        log=tiny_disk / "sentinel.log",
    )
    with pytest.raises(ConfigError, match=r"s\.sock\.json cannot be written: No space left"):
        claim(where)
    assert not where.socket.exists()
    (tiny_disk / "fill").unlink()
    held = claim(where)
    assert connects(where.socket)
    held.release()


def test_a_claim_survives_an_inspection(where: Places) -> None:
    held = claim(where)
    for _ in range(50):
        assert running(where) == os.getpid()
    held.release()
    eventually(lambda: running(where) is None)
