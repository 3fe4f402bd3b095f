"""Reservations of Slurm's jobs last as long as a job of this boot needs one of their GPUs."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from sentinel.client import Client
from sentinel.errors import ConfigError, ConflictError
from sentinel.fleet.engine import EngineError
from sentinel.fleet.job_gpus import (
    JobFiles,
    end_lost,
    end_unused,
    expand,
    gpus_of_job,
    names_of_job,
    parse_gres,
    release_job,
    reserve_for_job,
)
from sentinel.protocol.api_types import Holder, ReservationInfo
from tests.harness.gpu_views import gpu_status
from tests.harness.isolation import STRANGER
from tests.harness.programs import started_program, write_script
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S


class FakeDaemon:
    """Keeps reservations; some GPUs are in use by others.

    Args:
        busy: The UUIDs of these GPUs.
    """

    def __init__(self, *busy: str) -> None:
        self.busy = set(busy)
        self.kept: dict[str, ReservationInfo] = {}
        self.ends: dict[str, float] = {}

    def reserve(
        self, gpus: list[str], *, reason: str, seconds: float | None = None, wait: float = 0.0
    ) -> None:
        """Reserve GPUs, all or none."""
        assert wait <= 30
        taken = self.busy.union(*(one.gpus for one in self.kept.values()))
        if busy := taken.intersection(gpus):
            raise ConflictError(f"{sorted(busy)} are in use")
        self.add(reason, *gpus)
        if seconds is not None:
            self.ends[max(self.kept)] = time.monotonic() + seconds

    def add(self, reason: str, *gpus: str, uid: int | None = None) -> None:
        """Add a reservation."""
        name = str(len(self.kept))
        self.kept[name] = ReservationInfo(
            id=name,
            gpus=tuple(gpus),
            reason=reason,
            since=datetime.now(UTC),
            holder=Holder(uid=os.getuid() if uid is None else uid),
        )

    def cancel_reservation(self, name: str) -> None:
        """End a reservation."""
        del self.kept[name]

    def reservations(self) -> tuple[ReservationInfo, ...]:
        """List the reservations."""
        for name, end in self.ends.items():
            if time.monotonic() >= end:
                self.kept.pop(name, None)
        return tuple(self.kept.values())

    @property
    def shown(self) -> list[tuple[str, tuple[str, ...]]]:
        """The reasons and the GPUs of all reservations."""
        return [(one.reason, one.gpus) for one in self.kept.values()]


def reserve(daemon: FakeDaemon, folder: Path, job: str, *gpus: str) -> list[str]:
    """Run the prolog of a job."""
    files = JobFiles(path=folder)
    return reserve_for_job(cast("Client", daemon), files, job, gpus, wait=30, longest=60)


def release(daemon: FakeDaemon, folder: Path, job: str) -> None:
    """Run the epilog of a job."""
    release_job(cast("Client", daemon), JobFiles(path=folder), job)


def test_a_reservation_lasts_from_the_prolog_to_the_epilog(tmp_path: Path) -> None:
    daemon = FakeDaemon()
    assert reserve(daemon, tmp_path / "jobs", "7", "A", "B") == []
    assert reserve(daemon, tmp_path / "jobs", "7", "A", "B") == []  # a prolog may run again
    assert daemon.shown == [("Slurm job 7", ("A", "B"))]
    release(daemon, tmp_path / "jobs", "8")
    assert daemon.shown == [("Slurm job 7", ("A", "B"))]
    release(daemon, tmp_path / "jobs", "7")
    assert daemon.shown == []


def test_an_id_that_a_controller_without_state_gives_again_has_the_new_gpus(tmp_path: Path) -> None:
    daemon = FakeDaemon()
    reserve(daemon, tmp_path, "7", "A")
    reserve(daemon, tmp_path, "7", "B")
    assert daemon.shown == [("Slurm job 7", ("B",))]


def test_a_shared_gpu_is_free_until_its_last_job_ends(tmp_path: Path) -> None:
    daemon = FakeDaemon()
    reserve(daemon, tmp_path, "7", "A")
    assert reserve(daemon, tmp_path, "8", "A", "B") == []
    release(daemon, tmp_path, "7")
    assert daemon.shown == [("Slurm job 7", ("A",)), ("Slurm job 8", ("B",))]
    release(daemon, tmp_path, "8")
    assert daemon.shown == []


def test_a_shared_gpu_is_free_for_as_long_as_its_last_job_may_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, files, now = FakeDaemon(), JobFiles(path=tmp_path), time.monotonic()
    for job, seconds in (("7", 0), ("8", 40)):
        monkeypatch.setattr(time, "monotonic", lambda at=now + seconds: at)
        reserve(daemon, tmp_path, job, "A")
    for seconds, shown in ((90, [("Slurm job 7", ("A",))]), (110, [])):
        monkeypatch.setattr(time, "monotonic", lambda at=now + seconds: at)
        end_unused(cast("Client", daemon), files)
        assert daemon.shown == shown


def test_jobs_that_share_a_gpu_and_start_together_do_not_wait_for_each_other(
    tmp_path: Path,
) -> None:
    asked, granted = threading.Event(), threading.Event()

    class SlowDaemon(FakeDaemon):
        def reserve(
            self, gpus: list[str], *, reason: str, seconds: float | None = None, wait: float = 0.0
        ) -> None:
            if reason == "Slurm job 7":
                asked.set()
                assert granted.wait(TIMEOUT_S)
            super().reserve(gpus, reason=reason, seconds=seconds, wait=wait)

    daemon = SlowDaemon()
    with ThreadPoolExecutor() as pool, ExitStack() as granting:
        granting.callback(granted.set)
        first = pool.submit(reserve, daemon, tmp_path, "7", "B", "A")
        assert asked.wait(TIMEOUT_S), "it has the locks of its GPUs"
        second = pool.submit(reserve, daemon, tmp_path, "8", "A", "B")
        eventually((tmp_path / "8.job").exists)
        assert reserve(daemon, tmp_path, "9", "C") == []  # shares no GPU
        assert not second.done()
    assert first.result() == second.result() == []
    assert daemon.shown == [("Slurm job 9", ("C",)), ("Slurm job 7", ("B", "A"))]


def test_a_gpu_in_use_does_not_prevent_the_others(tmp_path: Path) -> None:
    daemon = FakeDaemon("B")
    assert reserve(daemon, tmp_path, "7", "A", "B", "C") == ["['B'] are in use"]
    assert daemon.shown == [("Slurm job 7", ("A",)), ("Slurm job 7", ("C",))]
    assert reserve(daemon, tmp_path, "8", "B") == ["['B'] are in use"]


def test_what_an_epilog_left_ends_later_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    daemon = FakeDaemon()
    daemon.add("Slurm job 1", "A")  # of a job before the last boot, or whose epilog had no daemon
    daemon.add("Slurm job 2", "B", uid=os.getuid() + 1)
    daemon.add("Slurm jobs", "C")
    old = {"boot": "another", "gpus": ["A"]}
    (tmp_path / "1.job").write_text(json.dumps(old))
    (tmp_path / "3.job").write_text("{")
    end_unused(cast("Client", daemon), JobFiles(path=tmp_path))
    assert [gpus for _, gpus in daemon.shown] == [("B",), ("C",)]
    assert not list(tmp_path.glob("*.job"))


@pytest.mark.parametrize("function", ["sentinel.fleet.job_gpus.read_regular", "os.scandir"])
def test_what_cannot_be_read_now_ends_no_reservation(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    daemon = FakeDaemon()
    reserve(daemon, tmp_path, "7", "A")
    with monkeypatch.context() as patch:
        patch.setattr(function, fail)
        assert reserve(daemon, tmp_path, "8", "A", "B") == []
        release(daemon, tmp_path, "8")
    assert daemon.shown == [("Slurm job 7", ("A",)), ("Slurm job 8", ("B",))]
    end_unused(cast("Client", daemon), JobFiles(path=tmp_path))
    assert daemon.shown == [("Slurm job 7", ("A",))]


@pytest.fixture
def three_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    """Reserve a GPU for each of three jobs whose epilog never runs; Slurm's commands are faked."""
    daemon = FakeDaemon()
    for job, gpu in (("7", "A"), ("8", "B"), ("9", "C")):
        reserve(daemon, tmp_path / "jobs", job, gpu)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return daemon


def lost(daemon: FakeDaemon, folder: Path) -> list[tuple[str, ...]]:
    """Run that part of the health check; return which GPUs are reserved then."""
    end_lost(cast("Client", daemon), JobFiles(path=folder / "jobs"), "node1")
    return [gpus for _, gpus in daemon.shown]


def test_a_job_without_steps_that_slurm_does_not_have_here_is_over(
    tmp_path: Path, three_jobs: FakeDaemon
) -> None:
    words = "--noheader --all --local --nodelist=node1 --format=%A"
    write_script(tmp_path / "squeue", f'[ "$*" = "{words}" ] && echo 8')
    # Slurm has lost job 10, but its step goes on. No test beside this one has a job 10.
    reserve(three_jobs, tmp_path / "jobs", "10", "D")
    title = "slurmstepd: [10.batch]"
    with started_program(title, "600", executable=shutil.which("sleep")) as step:
        eventually(lambda: title.encode() in Path(f"/proc/{step.pid}/cmdline").read_bytes())
        assert lost(three_jobs, tmp_path) == [("B",), ("D",)]
    assert lost(three_jobs, tmp_path) == [("B",)]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_a_title_that_another_user_has_chosen_keeps_no_reservation(
    tmp_path: Path, three_jobs: FakeDaemon
) -> None:
    write_script(tmp_path / "squeue", "true")
    title = "slurmstepd: [8.batch]"
    sleep = shutil.which("sleep")
    with started_program(title, "600", executable=sleep, user=STRANGER) as process:
        eventually(lambda: title.encode() in Path(f"/proc/{process.pid}/cmdline").read_bytes())
        assert lost(three_jobs, tmp_path) == []


def test_without_an_answer_of_slurm_no_job_is_over(tmp_path: Path, three_jobs: FakeDaemon) -> None:
    write_script(tmp_path / "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(EngineError, match="Unable to contact"):
        lost(three_jobs, tmp_path)
    assert len(three_jobs.shown) == 3


def test_a_job_that_comes_back_meanwhile_is_not_over(
    tmp_path: Path, three_jobs: FakeDaemon
) -> None:
    back = tmp_path / "jobs" / "7.job"
    write_script(tmp_path / "squeue", f"touch -d tomorrow {back}")
    assert lost(three_jobs, tmp_path) == [("A",)]


def test_slurm_is_not_asked_about_a_node_without_jobs(tmp_path: Path) -> None:
    assert lost(FakeDaemon(), tmp_path) == []


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        reserve(FakeDaemon(), tmp_path / "file" / "jobs", "7", "A")


#: As slurmd 22.05.8 printed it; the last line but one is of a GPU without a device file.
PRINTED = """\
slurmd: Gres Name=gpu Type=a100 Count=1 Index=7 ID=7696487 File=/dev/nvidia7 (null)
slurmd: Gres Name=gpu Type=(null) Count=2 Index=0 ID=7696487 File=/dev/nvidia[4-5] Cores=0-15
slurmd: Gres Name=gpu Type=1g Count=1 Index=0 ID=7 File=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21 x
slurmd: Gres Name=shard Type=(null) Count=8 Index=0 ID=8 File=/dev/nvidia0
slurmd: Gres Name=gpu Type=(null) Count=2 ID=7696487 Links=(null) File=(null) Flags=HAS_TYPE
slurmd: Gres Name=gpu Type=(null) Count=1 Index=1 ID=7696487 File=/tmp/dev/nvidia1 (null)
"""


def test_the_places_are_in_the_order_of_slurmd() -> None:
    assert list(parse_gres(PRINTED)) == [7, 4, 5, 0, None, None, 1]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("/dev/nvidia0", ["/dev/nvidia0"]),
        ("/dev/nvidia[0-2,5]", ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia5"]),
        ("/dev/nvidia[08-10]", ["/dev/nvidia08", "/dev/nvidia09", "/dev/nvidia10"]),
        ("/dev/a[1],/dev/b", ["/dev/a1", "/dev/b"]),
        ("", []),
        ("/dev/nvidia[x-2]", []),
    ],
)
def test_a_list_of_slurm_is_expanded(text: str, names: list[str]) -> None:
    assert list(expand(text)) == names


#: The driver has found the GPUs in another order than that of the bus.
ADDRESSES = {0: "0000:03:00.0", 1: "0000:01:00.0", 2: "0000:02:00.0", 9: "0000:99:00.0"}


@pytest.mark.parametrize(
    ("names", "gres", "addresses", "found"),
    [
        # The first place is /dev/nvidia2, which is the second GPU on the bus.
        (["0"], [2, 1, 0], ADDRESSES, [1]),
        (["0", "2"], [2, 1, 0], ADDRESSES, [1, 2]),
        # The list lacks /dev/nvidia0.
        (["0"], [1, 2], ADDRESSES, [0]),
        # A GPU that the daemon does not have.
        (["0", "1"], [9, 1], ADDRESSES, [0]),
        # Instances of one GPU.
        (["0", "1", "2"], [1, 1, 2], ADDRESSES, [0, 1]),
        # Without the list or the driver's files, a number is NVML's index.
        (["2", "0"], [], ADDRESSES, [2, 0]),
        (["2", "0"], [2, 1, 0], {}, [2, 0]),
        (["1"], [2, None], ADDRESSES, [1]),
        (["7"], [2, 1, 0], ADDRESSES, []),
    ],
)
def test_the_gpus_of_a_job(
    names: Sequence[str],
    gres: Sequence[int | None],
    addresses: Mapping[int, str],
    found: list[int],
) -> None:
    gpus = gpus_of_job(names, gres, addresses, [gpu_status(index) for index in range(3)])
    assert [one.index for one in gpus] == found


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({"SLURM_JOB_GPUS": "0,2", "CUDA_VISIBLE_DEVICES": "5"}, ("0", "2")),
        ({"CUDA_VISIBLE_DEVICES": "5"}, ("5",)),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "GPU-12ab,MIG-GPU-1"}, ("GPU-12ab",)),
        ({"SLURM_JOB_GPUS": ""}, ()),
        ({}, ()),
    ],
)
def test_the_names_of_a_job(environment: Mapping[str, str], names: tuple[str, ...]) -> None:
    assert names_of_job(environment) == names
