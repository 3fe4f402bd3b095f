"""One sentinel per GPU and host."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sentinel.errors import AccessDeniedError, GpuHeldError, SentinelError
from sentinel.host import gpu_locks, lock_holders
from sentinel.host.gpu_locks import GpuLocks
from sentinel.host.lock_holders import LockHolder, LockOwner, StrayHolder, holders, locked_by
from sentinel.host.procfs import read_stat
from sentinel.host.regular_file import why_untrusted
from sentinel.protocol.gpu import Gpu
from tests.harness.command_line import CommandLine
from tests.harness.gpu_environment import GpuHost, SimulatedHost
from tests.harness.narrowing import not_none
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S

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


def strays(folders: list[Path], uuids: list[str]) -> dict[str, StrayHolder]:
    """Find the stray processes that have the locks of GPUs."""
    found = locked_by(folders, uuids)
    return {uuid: owner.stray for uuid, owner in found.items() if owner.stray is not None}


def locked(folder: Path, *indices: int) -> GpuLocks:
    """Lock GPUs by the folder that all users share, and by one of this user."""
    own = folder.with_name(f"{folder.name}-of-{os.getuid()}")
    return GpuLocks([gpu(index) for index in indices], [own], [folder])


def test_either_all_locks_are_taken_or_none(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    held = locked(folder, 1)
    with pytest.raises(GpuHeldError, match=f"GPU 1 .*pid {os.getpid()}") as error:
        locked(folder, 0, 1)
    assert "choose other GPUs with --gpus" in error.value.remedy
    assert "`sentinel doctor` shows who holds each" in error.value.remedy
    locked(folder, 0).release()
    held.release()
    locked(folder, 0, 1).release()


@contextmanager
def left_behind(folder: Path, name: str, *, alone: bool = True) -> Iterator[int]:
    """Have a process of this name keep the lock of GPU 0 after the sentinel; yield its PID.

    Args:
        folder: The shared folder.
        name: Its short name.
        alone: Whether the sentinel has ended; else it lives, without a record, and the PID is its.
    """
    result, its_result = os.pipe()
    sentinel = os.fork()
    if sentinel == 0:
        locked(folder, 0)
        next(folder.glob("*.json")).unlink()
        pid = os.fork()
        if pid == 0 or not alone:
            Path("/proc/self/comm").write_text(name)
        if pid == 0:
            signal.pause()
        os.write(its_result, str(pid).encode())
        if not alone:
            signal.pause()
        os._exit(0)
    pid = int(os.read(result, 20))
    if alone:
        os.waitpid(sentinel, 0)
    try:
        eventually(lambda: Path(f"/proc/{pid}/comm").read_text() == f"{name}\n")
        yield pid if alone else sentinel
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if not alone:
            os.kill(sentinel, signal.SIGKILL)
            os.waitpid(sentinel, 0)
        os.close(result)
        os.close(its_result)


@pytest.mark.parametrize("name", ["stray", "sentinel"])
def test_a_gpu_whose_lock_only_a_stray_process_has_is_left_out_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(gpu_locks, "_ENDING_S", 0.1)
    folder = tmp_path / "locks"
    with left_behind(folder, name) as pid:
        locks = locked(folder, 0, 1)
        assert [gpu.index for gpu in locks.gpus] == [1]
        assert locks.files(gpu(0)) == ()
        assert locks.strays["GPU-0"].pid == pid
        assert str(locks.strays["GPU-0"]).startswith(f"pid {pid} (")
        (held,) = locks.held_elsewhere
        assert (held.index, held.holder) == (0, str(locks.strays["GPU-0"]))
        assert held.remedy == f"End it: kill {pid}"
        assert strays([folder], ["GPU-0", "GPU-1", "GPU-2"]) == locks.strays
        with pytest.raises(GpuHeldError, match=f"GPU 1 .*pid {os.getpid()}"):
            locked(folder, 0, 1)
        locks.release()
        with pytest.raises(GpuHeldError, match=rf"GPU 0 .*pid {pid} \(.*left behind") as error:
            locked(folder, 0)
        assert f"kill {pid}" in error.value.remedy
    eventually(lambda: not strays([folder], ["GPU-0"]))


@pytest.mark.parametrize("alone", [True, False])
def test_a_sentinel_without_a_record_is_no_stray_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, alone: bool
) -> None:
    monkeypatch.setattr(gpu_locks, "_ENDING_S", 0.1)
    if alone:  # it cannot be told apart where the kernel does not say who took a lock
        monkeypatch.setattr(lock_holders, "_taker", lambda _: 0)
    with (
        left_behind(tmp_path / "locks", "sentinel", alone=alone) as pid,
        pytest.raises(GpuHeldError, match=f"another sentinel: pid {pid}"),
    ):
        locked(tmp_path / "locks", 0, 1)


def test_what_has_a_lock_is_found_without_a_record(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    with left_behind(folder, "sentinel", alone=False) as pid:
        assert locked_by([folder], ["GPU-0", "GPU-1"]) == {"GPU-0": LockOwner(pids=(pid,))}


def test_a_lock_whose_last_process_is_ending_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_locks, "_ENDING_S", TIMEOUT_S)
    folder = tmp_path / "locks"
    with left_behind(folder, "stray") as pid:

        def end(*arguments: Any) -> dict[str, list[LockHolder]]:
            """Look for sentinels twice: before the locks, and when one is not free."""
            looks.append(holders(*arguments))
            if len(looks) == 2:
                os.kill(pid, signal.SIGKILL)
            return looks[-1]

        looks: list[dict[str, list[LockHolder]]] = []
        monkeypatch.setattr(gpu_locks, "holders", end)
        locks = locked(folder, 0)
        assert [gpu.index for gpu in locks.gpus] == [0]
        locks.release()
    assert len(looks) >= 2


@pytest.mark.long
def test_what_a_workload_left_behind_blocks_its_gpu_alone(simulated: SimulatedHost) -> None:
    flags = ("--poll", "200ms", "--workload", "bad_workloads:leaves_a_process_behind")
    with simulated.sentinel(1, *flags) as first:
        first.wait_for("stressor.ready")
        titled = first.stressors()  # the copy has the title of the stressor
        (stray,) = (copy for copy in titled if copy.parent() in titled)
        assert first.stop() == 0
    try:
        with simulated.sentinel(2, *QUICK) as second:
            holder = second.wait_for("gpu.held_elsewhere", gpu=0)["holder"]
            assert holder.startswith(f"pid {stray.pid} (sentinel: keeps idle GPU ")
            second.wait_for("stressor.ready", gpu=1)
            assert second.stop() == 0
    finally:
        stray.kill()


def test_only_its_owner_opens_a_lock_and_every_user_reads_the_record(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        locks = locked(tmp_path / "locks", 0)
    finally:
        os.umask(before)
    name, uid = tmp_path / "locks" / "GPU-0", os.getuid()
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777
    assert stat.S_IMODE(Path(f"{name}.{uid}.lock").stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(f"{name}.{uid}.json").stat().st_mode) == 0o644
    assert str(tmp_path) in str(Path(f"/proc/self/fd/{locks.files(gpu(0))[-1]}").readlink())
    assert holders([tmp_path / "locks"])["GPU-0"][0].pid == os.getpid()
    locks.release()
    assert not holders([tmp_path / "locks"])


def test_an_unusable_folder_is_skipped_unless_there_is_no_other(tmp_path: Path) -> None:
    unusable = Path("/proc/nowhere")
    GpuLocks([gpu(0)], [unusable, tmp_path], [unusable]).release()
    GpuLocks([gpu(0)], [unusable], [tmp_path]).release()
    with pytest.raises(AccessDeniedError, match=r"GPU 0 .*/proc/nowhere"):
        GpuLocks([gpu(0)], [unusable], [unusable])


def test_a_record_without_room_is_not_left_behind_and_is_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, full = os.pwrite, {"a"}

    def fill(file: int, text: bytes, offset: int) -> int:
        name = Path(f"/proc/self/fd/{file}").readlink().parent.name
        return write(file, text[:9] if name in full else text, offset)

    monkeypatch.setattr(os, "pwrite", fill)
    folders = [tmp_path / "a", tmp_path / "b"]
    locks = GpuLocks([gpu(0)], [], folders)
    assert not locks.unrecorded, "one record is enough"
    assert not list(folders[0].glob("*.json"))
    locks.release()
    full.add("b")
    locks = GpuLocks([gpu(0)], [], folders)
    names = [f"{folder}/GPU-0.{os.getuid()}.json" for folder in folders]
    assert locks.unrecorded == [f"{name}: No space left on device" for name in names]
    assert not holders(folders)
    assert not list(tmp_path.rglob("*.json"))
    locks.release()


@pytest.mark.long
def test_a_sentinel_reports_that_its_record_cannot_be_written(simulated: SimulatedHost) -> None:
    record = simulated.folder / "locks" / f"{simulated.uuid(0)}.{os.getuid()}.json"
    record.mkdir(parents=True)
    with simulated.sentinel(1, *QUICK) as sentinel:
        warning = sentinel.wait_for("service.warning")
        assert warning["about"] == "locks"
        assert warning["text"].startswith("no other user sees that this sentinel holds its GPUs")
        assert warning["text"].endswith(f"{record}: Is a directory")


def test_a_symbolic_link_is_no_lock(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    folder = tmp_path / "locks"
    folder.mkdir()
    (folder / f"GPU-0.{os.getuid()}.lock").symlink_to(target)
    (folder / f"GPU-0.{os.getuid()}.json").symlink_to(target)
    with pytest.raises(AccessDeniedError, match=r"GPU 0 .*lock: Too many levels of symbolic links"):
        GpuLocks([gpu(0)], [], [folder])
    GpuLocks([gpu(0)], [tmp_path / "own"], [folder]).release()
    assert target.read_text() == "mine"


# --- other users -----------------------------------------------------------------------------

STRANGER = 65534
root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")


@contextmanager
def stranger(act: Callable[[], object], uid: int = STRANGER) -> Iterator[str]:
    """Act as another user in a process of its own, which lives meanwhile; yield the result."""
    result, its_result = os.pipe()
    goes_on, its_go_on = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(its_go_on)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            try:
                kept = act()
                os.write(its_result, str(kept).encode())
            except SentinelError as error:
                os.write(its_result, error.what.encode())
            os.close(its_result)
            os.read(goes_on, 1)
        finally:
            os._exit(0)
    os.close(its_result)
    os.close(goes_on)
    try:
        with os.fdopen(result) as file:
            yield file.read()
    finally:
        os.close(its_go_on)
        os.waitpid(pid, 0)


@pytest.fixture
def shared() -> Iterator[Path]:
    """Create a folder like /tmp, in which every user may create files, with one of root in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        locked(Path(folder) / "locks", 9).release()
        yield Path(folder)


@root
def test_the_gpu_of_another_users_sentinel_is_left_to_it(shared: Path) -> None:
    held = locked(shared / "locks", 0)

    def lock(*indices: int) -> list[int]:
        return [gpu.index for gpu in locked(shared / "locks", *indices).gpus]

    with stranger(lambda: lock(0, 1)) as indices:
        assert indices == "[1]"
    with stranger(lambda: locked(shared / "locks", 0, 1).held_elsewhere[0].holder) as holder:
        assert holder.startswith(f"another sentinel: pid {os.getpid()} of uid 0 since ")
    with stranger(lambda: lock(0)) as error:
        assert f"GPU 0 (GPU-0) is held by another sentinel: pid {os.getpid()} of uid 0" in error
    held.release()
    with stranger(lambda: lock(0, 1)) as indices:
        assert indices == "[0, 1]"


@root
def test_root_shares_a_gpu_with_the_sentinel_of_another_user(shared: Path) -> None:
    with stranger(lambda: locked(shared / "locks", 0).gpus):
        locks = locked(shared / "locks", 0, 1)
        assert [gpu.index for gpu in locks.gpus] == [0, 1]
        assert [(uuid, other.uid) for uuid, other in locks.others.items()] == [("GPU-0", STRANGER)]
        assert not locks.held_elsewhere
        locks.release()
    assert not holders([shared / "locks"])


@root
@pytest.mark.parametrize("mode", [0o1777, 0o755])
def test_the_sentinel_of_a_user_who_owns_the_shared_folder_is_seen_by_all(
    shared: Path, mode: int
) -> None:
    """No other user has locks or records there, but who is recorded there is found."""
    folder = shared / "theirs"

    def first() -> list[int]:
        found = [gpu.index for gpu in locked(folder, 0).gpus]
        folder.chmod(mode)
        return found

    with stranger(first) as indices:
        assert indices == "[0]"
        locks = locked(folder, 0, 1)
        assert [(uuid, other.uid) for uuid, other in locks.others.items()] == [("GPU-0", STRANGER)]
        assert [len(locks.files(gpu)) for gpu in locks.gpus] == [1, 1], "of root's own folder"
        locks.release()
        with stranger(lambda: locked(folder, 0), uid=STRANGER - 1) as error:
            assert f"is held by another sentinel: pid {pid_of(folder)} of uid {STRANGER}" in error
        with stranger(lambda: len(locked(folder, 0, 1).gpus), uid=STRANGER - 1) as count:
            assert count == "1"
    assert not holders([folder])


@root
def test_a_strangers_link_instead_of_the_shared_folder_is_not_followed(shared: Path) -> None:
    """It may lead to a server that does not answer."""
    held = locked(shared / "locks", 0)
    (shared / "link").symlink_to(shared / "locks")
    assert holders([shared / "link"])
    os.chown(shared / "link", STRANGER, STRANGER, follow_symlinks=False)
    assert not holders([shared / "link"])
    held.release()


def pid_of(folder: Path) -> int:
    """Read the PID of the only sentinel with a record."""
    ((holder,),) = holders([folder]).values()
    return holder.pid


@root
def test_no_user_holds_a_gpu_by_files_alone_or_for_another(shared: Path) -> None:
    """Another user creates, locks and writes all that it can, before and after the first lock."""
    folder = shared / "locks"
    locked(folder, 0).release()  # the next one exists when the files of GPU 1 do not

    def hold() -> list[str]:
        own = not_none(read_stat(os.getpid()))
        note = {"pid": own.pid, "started": own.started, "since": "2026-11-22T12:00:00+00:00"}
        dead = {**note, "started": own.started + 1}
        others = {**note, "pid": 1}
        bare = {**note, "since": "\x1b[1mrun this\x1b[0m"}
        for index, user, text in (
            (0, 0, note),
            (1, 0, note),
            (1, STRANGER, dead),
            (2, STRANGER, others),
            (3, STRANGER, []),
            (4, STRANGER, bare),
            (5, STRANGER, {**note, "pid": float("inf")}),
            (6, "0" + str(STRANGER), note),
        ):
            with suppress(PermissionError):
                (folder / f"GPU-{index}.{user}.json").write_text(json.dumps(text))
        with suppress(OSError):
            os.link(folder / f"GPU-2.{STRANGER}.json", folder / "GPU-7.0.json")
        held = []
        for name in (*(f"GPU-{index}.0.lock" for index in range(2)), "GPU-0.lock"):
            with suppress(PermissionError):
                file = os.open(folder / name, os.O_RDONLY | os.O_CREAT)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(name)
        return held

    with stranger(hold) as held:
        assert held == "['GPU-1.0.lock', 'GPU-0.lock']"
        assert not holders([folder])
        locks = locked(folder, *range(8))
        assert not locks.others
        assert [len(locks.files(gpu)) for gpu in locks.gpus] == [2, 1, 2, 2, 2, 2, 2, 2]
        locks.release()


@root
@pytest.mark.parametrize("kind", ["folder", "parent", "link"])
def test_a_folder_that_a_stranger_controls_has_no_lock(shared: Path, kind: str) -> None:
    folder = shared / "a" / "locks"
    if kind == "link":
        (shared / "mine").mkdir()
        folder.parent.mkdir()
        folder.symlink_to(shared / "mine")
        os.chown(folder, STRANGER, STRANGER, follow_symlinks=False)
    else:
        folder.mkdir(parents=True)
        os.chown(folder if kind == "folder" else folder.parent, STRANGER, STRANGER)
    with pytest.raises(AccessDeniedError, match=f"belongs to uid {STRANGER}"):
        GpuLocks([gpu(0)], [folder], [folder])
    assert not list(folder.iterdir())
    GpuLocks([gpu(0)], [folder, shared / "own"], [folder]).release()


@root
def test_a_link_that_leads_through_a_strangers_is_not_trusted(shared: Path) -> None:
    (shared / "theirs").symlink_to(shared / "locks")
    os.chown(shared / "theirs", STRANGER, STRANGER, follow_symlinks=False)
    (shared / "mine").symlink_to("theirs")
    assert f"theirs belongs to uid {STRANGER}" in (why_untrusted(shared / "mine" / "x") or "")
    (shared / "loop").symlink_to("loop")
    assert "too many links" in (why_untrusted(shared / "loop") or "")
    (shared / "fine").symlink_to(Path("locks") / ".." / "locks")
    assert why_untrusted(shared / "fine" / "x") is None


def test_a_folder_in_which_all_users_replace_files_is_not_trusted(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert "all users may replace" in (why_untrusted(tmp_path / "locks") or "")
    tmp_path.chmod(0o1777)
    assert why_untrusted(tmp_path / "locks") is None


@root
@pytest.mark.long
def test_a_sentinel_says_that_another_user_has_one(
    simulated: SimulatedHost, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = simulated.folder / "locks"
    locked(folder, 9).release()
    with stranger(os.getpid) as pid:
        process = not_none(read_stat(pid))
        record = folder / f"{simulated.registry.gpus()[0].uuid}.{STRANGER}.json"
        note = {
            "pid": process.pid,
            "started": process.started,
            "since": "2026-11-22T12:00:00+00:00",
        }
        record.write_text(json.dumps(note))
        os.chown(record, STRANGER, STRANGER)
        for name, value in simulated.environment().items():
            monkeypatch.setenv(name, value)
        printed = cli("status", code=3)
        user = pwd.getpwuid(STRANGER).pw_name
        since = datetime.fromisoformat(str(note["since"])).astimezone()
        text = f"the sentinel of {user} (pid {pid}) since {since:%Y-%m-%d %H:%M}"
        assert printed.err.endswith(f"\n1 GPU held by {text}\n")
        lines = cli.json("doctor", "--simulate", "1", "--json", code=1)["lines"]
        assert f"held by {text}" in {line["found"] for line in lines}
        with simulated.sentinel(1, *QUICK) as sentinel:
            said = sentinel.wait_for("gpu.held_elsewhere", gpu=0)
            assert said["used"]
            assert said["holder"] == f"pid {pid} of uid {STRANGER} since 2026-11-22T12:00:00+00:00"
            sentinel.wait_for("stressor.ready", gpu=0)
