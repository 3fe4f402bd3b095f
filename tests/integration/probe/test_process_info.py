"""Details of processes are read from /proc and the name service."""

from __future__ import annotations

import os
import threading

from sentinel.probe.process_info import ProcessIdentifier
from sentinel.protocol.gpu import GpuProcess, ProcessKind
from tests.harness.timing import TIMEOUT_S


def test_a_name_service_that_hangs_leaves_users_unknown() -> None:
    """All other details are returned at once, for each process."""
    called = threading.Event()
    never = threading.Event()

    def hang(pid: int) -> str | None:
        del pid
        called.set()
        never.wait()
        return "nobody"

    identifier = ProcessIdentifier(find_user=hang)
    for pid in (os.getpid(), os.getppid()):
        (process,) = identifier.identify([GpuProcess(pid=pid, memory=5)])
        assert called.wait(TIMEOUT_S)
        assert process.started is not None
        assert (process.memory, process.user) == (5, None)
    never.set()


def test_a_pid_that_is_not_in_proc_has_no_details() -> None:
    """A process of another container is foreign and unverified, never an error."""
    process = GpuProcess(pid=2**31 - 1, kind=ProcessKind.GRAPHICS)
    assert ProcessIdentifier().identify([process]) == (process,)
