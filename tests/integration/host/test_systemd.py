"""Notifications to systemd over a notification socket."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from sentinel.host.systemd import Journal, SystemdSocket
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.journal_harness import fake_journal
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S


@contextmanager
def manager(address: str) -> Iterator[socket.socket]:
    """Listen on a notification socket, as a service manager does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address.replace("@", "\0", 1) if address[0] == "@" else address)
        listening.settimeout(TIMEOUT_S)
        yield listening


@pytest.mark.parametrize("abstract", [False, True])
def test_lines_are_sent_as_one_datagram(tmp_path: Path, *, abstract: bool) -> None:
    address = f"@sentinel-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with (
        manager(address) as listening,
        closing(SystemdSocket({"NOTIFY_SOCKET": address})) as notifier,
    ):
        assert notifier.enabled
        assert notifier.send(["READY=1", "STATUS=2 GPUs: 2 idle"])
        assert listening.recv(4096) == b"READY=1\nSTATUS=2 GPUs: 2 idle"
        assert not notifier.send([])


@pytest.mark.parametrize(
    "address", ["", "@", "relative", "vsock:2:1234", "/nowhere/at/all", "/" + "x" * 200]
)
def test_a_missing_manager_is_no_error(address: str) -> None:
    with closing(SystemdSocket({"NOTIFY_SOCKET": address} if address else {})) as notifier:
        assert not notifier.send(["READY=1"])


def test_a_manager_that_does_not_read_never_blocks(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with manager(address), closing(SystemdSocket({"NOTIFY_SOCKET": address})) as notifier:
        assert not all(notifier.send(["WATCHDOG=1"]) for _ in range(10_000))


def test_a_manager_that_exited_is_no_error(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with closing(SystemdSocket({"NOTIFY_SOCKET": address})) as notifier:
        with manager(address):
            assert notifier.send(["READY=1"])
        assert not notifier.send(["READY=1"])
        Path(address).unlink()
        assert not notifier.send(["READY=1"])


def test_a_closed_notifier_sends_nothing(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with manager(address):
        notifier = SystemdSocket({"NOTIFY_SOCKET": address})
        notifier.close()
        notifier.close()
        assert not notifier.send(["READY=1"])
        assert not notifier.enabled


@pytest.mark.parametrize(
    ("variables", "watchdog"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_used_only_for_this_pid(
    variables: dict[str, str], watchdog: float | None
) -> None:
    with closing(SystemdSocket({"NOTIFY_SOCKET": "/run/x", **variables}, pid=7)) as notifier:
        assert notifier.watchdog == watchdog


def test_no_child_inherits_the_variables_of_the_manager() -> None:
    environ = {
        "NOTIFY_SOCKET": "/run/x",
        "WATCHDOG_USEC": "1",
        "WATCHDOG_PID": str(os.getpid()),
        "A": "b",
    }
    SystemdSocket(environ).close()
    assert environ == {"A": "b"}


# --- a whole sentinel ------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_sentinel_notifies_ready_watchdog_and_stopping(
    simulated: SimulatedHost, tmp_path: Path
) -> None:
    address = str(tmp_path / "notify")
    variables = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "800000"}
    with manager(address) as listening:
        listening.settimeout(TIMEOUT_S)
        with simulated.sentinel(1, "--workload", "hold", environment=variables) as sentinel:
            received = ""
            while "READY=1" not in received or received.count("WATCHDOG=1") < 3:
                received += listening.recv(4096).decode() + "\n"
            assert "STATUS=1 GPU: " in received
            sentinel.process.send_signal(signal.SIGSTOP)  # no more decisions
            eventually(lambda: psutil.Process(sentinel.process.pid).status() == "stopped")
            with suppress(BlockingIOError):
                listening.setblocking(False)
                while True:
                    listening.recv(4096)
            listening.settimeout(1.0)
            with pytest.raises(TimeoutError):
                listening.recv(4096)
            sentinel.process.send_signal(signal.SIGCONT)
            listening.settimeout(TIMEOUT_S)
            assert b"WATCHDOG=1" in listening.recv(4096)
            assert sentinel.stop() == 0
            received = ""
            while "STOPPING=1" not in received:
                received += listening.recv(4096).decode()
            assert "EXTEND_TIMEOUT_USEC=" in received


@pytest.mark.parametrize("size", [0, 1, 10_000, 300_000, 3_000_000])
def test_an_entry_of_any_size_arrives(tmp_path: Path, size: int) -> None:
    path = tmp_path / "socket"
    with fake_journal(path) as journal, closing(Journal(path)) as sender:
        before = len(list(Path("/proc/self/fd").iterdir()))
        sender.send({"MESSAGE": "x" * size, "LINES": "a\nb"})
        assert journal.take() == {"MESSAGE": "x" * size, "LINES": "a\nb"}
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_journal_that_comes_back_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with closing(Journal(path)) as sender:
        with fake_journal(path):
            sender.send({"MESSAGE": "1"})
        with pytest.raises(ConnectionRefusedError):
            sender.send({"MESSAGE": "2"})
        path.unlink()
        with fake_journal(path) as journal:
            sender.send({"MESSAGE": "3"})
            assert journal.take() == {"MESSAGE": "3"}
