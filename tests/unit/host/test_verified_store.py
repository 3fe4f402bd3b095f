"""The file of verified work, which the daemons of a host share."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.host.stores import verified_store
from sentinel.host.stores.verified_store import NAME, StoredWork
from sentinel.protocol.views import VerifiedCounts


def work(checks: int, **facts: float) -> StoredWork:
    """Build the work of a GPU with this number of checks."""
    stored = StoredWork(index=0, name="H200", since=100.0, total=VerifiedCounts(checks=checks))
    return replace(stored, **facts)  # type: ignore[arg-type]


def test_two_daemons_keep_the_work_of_each_other(tmp_path: Path) -> None:
    path = tmp_path / NAME
    verified_store.save(path, {"A": work(1)}, {})
    verified_store.save(path, {"B": work(2)}, {})
    verified_store.save(path, {"A": work(3)}, {"A": work(1)})
    assert {uuid: one.total.checks for uuid, one in verified_store.read(path).items()} == {
        "A": 3,
        "B": 2,
    }


def test_the_work_of_two_daemons_on_one_gpu_is_added(tmp_path: Path) -> None:
    path = tmp_path / NAME
    verified_store.save(path, {"A": work(10)}, {})
    verified_store.save(path, {"A": work(15, since=50.0)}, {"A": work(10)})
    merged = verified_store.save(path, {"A": work(12, last=9.0)}, {"A": work(10)})
    assert merged["A"].total.checks == 17
    assert merged["A"].since == 50.0
    # A daemon that only watches the GPU changes nothing.
    idle = work(10, daemon=7.0)
    assert verified_store.save(path, {"A": idle}, {"A": work(10)})["A"] == merged["A"]


def test_a_lock_that_is_kept_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified_store, "_LOCK_TIMEOUT_S", 0.0)
    with (tmp_path / f"{NAME}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="another process keeps its lock"):
            verified_store.save(tmp_path / NAME, {"A": work(1)}, {})
    assert not (tmp_path / NAME).exists()
