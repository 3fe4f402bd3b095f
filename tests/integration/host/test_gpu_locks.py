"""One sentinel per GPU and host."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from sentinel.errors import AccessDeniedError, GpuHeldError
from sentinel.host.gpu_locks import GpuLocks
from sentinel.protocol.gpu import Gpu
from tests.harness.gpu_environment import GpuHost
from tests.harness.sentinel_process import eventually

QUICK = ("--rearm", "300ms", "--poll", "200ms", "--workload", "hold")

pytestmark = pytest.mark.usefixtures("fake_torch")


def gpu(index: int) -> Gpu:
    return Gpu(uuid=f"GPU-{index}", index=index, name="Fake", pci_bus_id=str(index), memory_total=1)


@pytest.mark.long
def test_a_second_sentinel_starts_no_stressor_and_names_the_first(host: GpuHost) -> None:
    with (
        host.sentinel([1], *QUICK) as first,
        host.sentinel([0], *QUICK) as other,
    ):
        first.wait_for("stressor.ready")
        other.wait_for("stressor.ready")
        with host.sentinel(2, *QUICK) as second:
            assert second.wait_for_exit() == 75
            assert f"pid {first.process.pid}" in second.errors or (
                f"pid {other.process.pid}" in second.errors
            )
            assert not second.events


@pytest.mark.long
def test_the_lock_of_a_dead_sentinel_is_free(host: GpuHost) -> None:
    with host.sentinel(1, *QUICK) as first:
        first.wait_for("stressor.ready")
        first.process.kill()
        eventually(host.empty)
    with host.sentinel(1, *QUICK) as second:
        second.wait_for("stressor.ready")


@pytest.mark.long
def test_a_stressor_that_outlives_its_supervisor_keeps_the_lock(host: GpuHost) -> None:
    with host.sentinel(1, "--poll", "200ms", "--workload", "bad_workloads:stops_itself") as first:
        first.wait_for("stressor.ready")
        (stressor,) = first.stressors()
        eventually(lambda: stressor.status() == "stopped")
        first.process.send_signal(signal.SIGSTOP)
        with host.sentinel(1, *QUICK) as second:
            assert second.wait_for_exit() == 75


def test_either_all_locks_are_taken_or_none(tmp_path: Path) -> None:
    held = GpuLocks([gpu(1)], [tmp_path])
    with pytest.raises(GpuHeldError, match=f"GPU 1 .*pid {os.getpid()}"):
        GpuLocks([gpu(0), gpu(1)], [tmp_path])
    GpuLocks([gpu(0)], [tmp_path]).release()
    held.release()
    GpuLocks([gpu(0), gpu(1)], [tmp_path]).release()


def test_every_user_can_take_the_lock(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        locks = GpuLocks([gpu(0)], [tmp_path / "locks"])
    finally:
        os.umask(before)
    locks.release()
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "locks" / "GPU-0.lock").stat().st_mode) == 0o666


def test_an_unusable_folder_is_skipped_unless_it_is_the_only_one(tmp_path: Path) -> None:
    unusable = Path("/proc/nowhere")
    GpuLocks([gpu(0)], [unusable, tmp_path]).release()
    assert (tmp_path / "GPU-0.lock").exists()
    with pytest.raises(AccessDeniedError, match="nowhere"):
        GpuLocks([gpu(0)], [unusable])


def test_a_symbolic_link_as_a_lock_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    folder = tmp_path / "locks"
    folder.mkdir()
    (folder / "GPU-0.lock").symlink_to(target)
    with pytest.raises(AccessDeniedError, match="cannot be opened"):
        GpuLocks([gpu(0)], [folder])
    assert target.read_text() == "mine"
