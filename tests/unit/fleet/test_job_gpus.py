"""Reservations of Slurm's jobs last as long as a job of this boot needs one of their GPUs."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from sentinel.client import Client
from sentinel.errors import ConfigError, ConflictError
from sentinel.fleet.slurm.job_gpus import JobFiles, end_unused, release_job, reserve_for_job
from sentinel.protocol.api_types import Holder, ReservationInfo


class FakeDaemon:
    """Keeps reservations; some GPUs are in use by others.

    Args:
        busy: The UUIDs of these GPUs.
    """

    def __init__(self, *busy: str) -> None:
        self.busy = set(busy)
        self.kept: dict[str, ReservationInfo] = {}

    def reserve(
        self, gpus: list[str], *, reason: str, seconds: float | None = None, wait: float = 0.0
    ) -> None:
        """Reserve GPUs, all or none."""
        assert wait <= 30
        taken = self.busy.union(*(one.gpus for one in self.kept.values()))
        if busy := taken.intersection(gpus):
            raise ConflictError(f"{sorted(busy)} are in use")
        self.add(reason, *gpus)

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


def test_a_shared_gpu_is_free_until_its_last_job_ends(tmp_path: Path) -> None:
    daemon = FakeDaemon()
    reserve(daemon, tmp_path, "7", "A")
    assert reserve(daemon, tmp_path, "8", "A", "B") == []
    release(daemon, tmp_path, "7")
    assert daemon.shown == [("Slurm job 7", ("A",)), ("Slurm job 8", ("B",))]
    release(daemon, tmp_path, "8")
    assert daemon.shown == []


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


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        reserve(FakeDaemon(), tmp_path / "file" / "jobs", "7", "A")
