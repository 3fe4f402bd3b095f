"""The doctor inspects a real host: locks, processes, inotify."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sentinel.diagnostics import doctor_inspection
from sentinel.diagnostics.doctor_facts import Folder, GpuFacts
from sentinel.host import lock_holders
from sentinel.host.gpu_locks import GpuLocks
from sentinel.host.lock_holders import LockOwner
from sentinel.protocol.gpu import Gpu
from tests.harness.doctor_harness import doctor, rows
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.parameters import mostly_long
from tests.harness.programs import run_program
from tests.harness.sentinel_process import eventually


def test_the_exit_code_is_that_of_the_worst_line(simulated: SimulatedHost) -> None:
    environment = simulated.environment()
    code, output, errors = doctor("--simulate", "2", "--json", **environment)
    assert errors == ""
    body = json.loads(output)
    levels = {row["level"] for row in body["lines"]}
    worst = next(level for level in ("problem", "warning", "ok") if level in levels)
    assert body["verdict"] == worst
    assert code == {"ok": 0, "warning": 1, "problem": 2}[worst]
    assert rows(output)["GPUs"]["found"] == "2"


@pytest.mark.long
def test_a_nice_start_is_a_warning(simulated: SimulatedHost) -> None:
    command = ["nice", "-n", "7", sys.executable, "-m", "sentinel", "doctor", "--simulate", "1"]
    done = run_program(*command, "--json", env=simulated.environment())
    row = rows(done.stdout)["niceness"]
    assert row["level"] == "warning"
    assert int(row["found"]) >= 7
    assert done.returncode in {1, 2}


@pytest.mark.long
def test_without_a_driver_all_other_lines_are_present(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this host has a real driver")
    code, output, errors = doctor("--json")
    assert (code, errors) == (2, "")
    found = rows(output)
    assert found["driver"]["level"] == "problem"
    assert "--simulate 2" in found["driver"]["do"]
    assert {"torch", "binding", "record folders", "CPU quota", "host memory"} <= found.keys()


@pytest.mark.long
@pytest.mark.usefixtures("fake_torch")
def test_a_gpu_that_another_sentinel_holds_is_named_with_its_holder(
    simulated: SimulatedHost,
) -> None:
    with simulated.sentinel(1, "--workload", "hold") as one:
        held = one.wait_for("stressor.ready")["gpu"]
        code, output, _ = doctor("--simulate", "2", "--json", **simulated.environment())
        (row,) = (r for r in json.loads(output)["lines"] if r["check"] == "other sentinels")
        assert (row["gpu"], row["level"]) == (held, "warning")
        user = pwd.getpwuid(os.getuid()).pw_name
        holder = f"held by the sentinel of {user} (pid {one.process.pid}) since 2"
        assert row["found"].startswith(holder)
        assert code >= 1
        assert one.process.poll() is None


@mostly_long("number", ["0", "65"])
def test_an_impossible_number_of_gpus_is_refused(number: str) -> None:
    code, output, errors = doctor("--simulate", number)
    assert (code, output) == (2, "")
    assert f"--simulate: {number} is out of range" in errors


# --- the host --------------------------------------------------------------------------------


def test_inspecting_a_lock_neither_takes_nor_creates_it(tmp_path: Path) -> None:
    gpus = [Gpu(uuid=f"GPU-{i}", index=i, name="", pci_bus_id="", memory_total=0) for i in (0, 1)]
    first, second, nowhere = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    held = GpuLocks(gpus[:1], [], [first, second])
    GpuLocks(gpus[1:], [], [first, second]).release()
    names = ["GPU-0", "GPU-1", "GPU-2"]
    (found,) = doctor_inspection._held([first, second], [nowhere], names)
    assert found.uuid == "GPU-0"
    assert f"(pid {os.getpid()}) since 2" in found.holder
    assert not nowhere.exists()
    held.release()
    assert list(doctor_inspection._held([first, second], [], names)) == []
    GpuLocks(gpus, [], [first, second]).release()


def test_a_sentinel_without_a_record_is_named_by_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = LockOwner(pids=(4711,))
    monkeypatch.setattr(lock_holders, "locked_by", lambda *_: {"GPU-0": owner})
    (found,) = doctor_inspection._held([tmp_path], [], ["GPU-0"])
    assert found.holder == "a sentinel of this user without a record (pid 4711)"
    assert (found.uuid, found.uid, found.stray) == ("GPU-0", os.getuid(), None)


def test_a_full_record_folder_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = SimpleNamespace(f_bfree=0, f_bavail=0, f_ffree=9, f_favail=9, f_files=9)
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    assert doctor_inspection._folder(tmp_path).unusable == "its file system is full"
    room.f_bfree = room.f_bavail = 9
    assert doctor_inspection._folder(tmp_path).unusable is None
    room.f_ffree = room.f_favail = 0
    assert doctor_inspection._folder(tmp_path).unusable == "its file system is full"
    room.f_files = 0
    assert doctor_inspection._folder(tmp_path).unusable is None


def test_a_record_folder_is_checked_by_its_mode_and_not_created(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    for folder, mode in ((shared, 0o1777), (own, 0o755)):
        folder.mkdir()
        folder.chmod(mode)
    (tmp_path / "file").touch()
    assert doctor_inspection._folder(shared) == Folder(path=str(shared))
    assert not doctor_inspection._folder(own).shared
    new = doctor_inspection._folder(tmp_path / "new")
    assert (new.missing, new.unusable) == (True, None)
    assert not (tmp_path / "new").exists()
    assert doctor_inspection._folder(tmp_path / "file").unusable == "it is not a folder"
    assert "is not writable" in (doctor_inspection._folder(Path("/proc/nowhere/x")).unusable or "")


@pytest.mark.parametrize(
    ("root", "mount", "private"),
    [
        ("/tmp/systemd-private-1f-sentinel.service-x/tmp", "/tmp", True),  # noqa: S108
        ("/systemd-private-1f-sentinel.service-x/tmp", "/tmp", True),  # noqa: S108
        ("/", "/tmp", False),  # noqa: S108
        ("/systemd-private-1f-sentinel.service-x/tmp", "/var/tmp", False),  # noqa: S108
    ],
)
def test_a_folder_that_systemd_mounted_for_one_service_is_private(
    tmp_path: Path, root: str, mount: str, *, private: bool
) -> None:
    mounts = f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 8:1 {root} {mount} rw - ext4 /dev/sda rw\n"
    (tmp_path / "mountinfo").write_text(mounts)
    folder = Path("/tmp/sentinel-locks")  # noqa: S108
    assert doctor_inspection._private(folder, tmp_path / "mountinfo") is private


@pytest.mark.long
def test_memory_shows_newcomers_in_a_separate_pid_namespace(simulated: SimulatedHost) -> None:
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a PID namespace")
    env = simulated.environment()
    del env["SENTINEL_SIM_DIR"]  # simulated GPUs are of the namespace of their host
    done = run_program(*unshare, sys.executable, "-m", "sentinel", "doctor", "--json", env=env)
    row = rows(done.stdout)["PID namespace"]
    assert row["level"] == "warning"
    assert "detected by memory and by the list of computing processes" in row["means"]
    assert done.returncode in {1, 2}


def test_an_mps_server_is_found_by_its_name(tmp_path: Path) -> None:
    sleep = shutil.which("sleep")
    assert sleep is not None
    server = tmp_path / "nvidia-cuda-mps-server"
    shutil.copy(sleep, server)
    with subprocess.Popen([str(server), "60"]) as process:
        try:
            eventually(
                lambda: (
                    (process.pid, "nvidia-cuda-mps-server") in doctor_inspection._mps_processes()
                )
            )
        finally:
            process.kill()
    assert process.pid not in dict(doctor_inspection._mps_processes())


def test_a_missing_node_cannot_be_watched_and_existing_ones_can(tmp_path: Path) -> None:
    node = tmp_path / "node"
    node.touch()
    gpus = [GpuFacts(index=i, node=str(path)) for i, path in enumerate((node, "/nowhere"))]
    none, (first, second) = doctor_inspection._watched(gpus)
    assert none is None
    assert first.unwatched is None
    assert second.unwatched == os.strerror(2)


@pytest.mark.long
def test_a_missing_inotify_instance_is_reported() -> None:
    code = (
        "import resource; from sentinel.diagnostics import doctor_inspection as looking;"
        "import inotify_simple; inotify_simple.INotify().close();"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3));"
        "print(looking._watched([])[0])"
    )
    done = run_program(sys.executable, "-c", code, check=True)
    assert done.stdout.strip() == "no inotify instance is left"
