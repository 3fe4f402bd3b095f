"""Programs on a GPU are observed by opens of its node, and described by /proc."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sentinel.probe.process_info import Burst, NodeWatch, ProcessIdentifier
from sentinel.protocol.gpu import GpuProcess, ProcessKind
from tests.harness.probe_harness import open_nodes
from tests.harness.sentinel_process import eventually
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


@pytest.mark.parametrize(
    ("opens", "cuda"),
    [
        ([0, 1, 2], False),
        ([0, 1, 2, 8, 128, 129, 130, 159, 160, 161], False),
        ([1000 * second + ms for second in range(5) for ms in (0, 1, 3, 31, 32, 34)], False),
        ([0, 1, 3, 4, 15], True),
        ([0, 1, 2, 3, 5, 8], True),
        ([0, 7, 14, 21, 28], True),
        ([0, 1, 2, 500, 501, 502, 503, 504], True),
    ],
    ids=[
        "nvml",
        "nvidia-smi",
        "nvidia-smi -l 1",
        "cuInit",
        "cuInit, all seen",
        "slow cuInit",
        "cuda after nvml",
    ],
)
def test_only_the_opens_of_a_cuda_program_are_a_burst(opens: list[int], cuda: bool) -> None:  # noqa: FBT001
    """Five opens in a row are a burst; three are not, however often they recur."""
    burst = Burst()
    noticed = [burst.opened(ms / 1000) for ms in opens]
    assert any(noticed) is cuda


def test_a_node_that_cannot_be_watched_is_left_out(tmp_path: Path) -> None:
    """A missing node is no error, and the others are watched."""
    node, other = tmp_path / "node", tmp_path / "other"
    node.touch()
    other.touch()
    noticed = threading.Event()
    watch = NodeWatch()
    assert not watch.add(str(tmp_path / "missing"), noticed.set)
    assert watch.add(str(node), noticed.set)
    assert watch.add(str(other), lambda: None)

    def noticed_after_opens() -> bool:
        open_nodes(node, other)
        return noticed.wait(0.05)

    eventually(noticed_after_opens)
