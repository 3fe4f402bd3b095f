"""What is asked of ClusterShell, and what may not be asked while it works."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sentinel.fleet.clush import Clush
from sentinel.fleet.engine import EngineError
from sentinel.fleet.run_file import FleetFolder, FleetRun
from sentinel.host.procfs import boot_id, read_stat


def test_a_run_is_not_resumed_beside_its_own_clush(tmp_path: Path) -> None:
    """The file names one clush alone: the nodes of the first would be taken for over."""
    folder = FleetFolder(path=tmp_path)
    folder.create()
    stat = read_stat(os.getpid())
    assert stat is not None
    run = FleetRun(
        id="x",
        engine="clush",
        plan="x",
        plan_hash="0" * 16,
        nodes=("n1", "n2"),
        started=datetime(2026, 11, 23, tzinfo=UTC),
        jobs=(f"{boot_id()}:{os.getpid()}:{stat.started}",),
    )
    folder.write(run)
    (folder.logs / "clush.txt").write_text("n1: begun")
    with pytest.raises(EngineError, match="still works on its other nodes"):
        Clush(folder=folder).submit(run, folder, ["n2"])
    assert folder.read() == run
    assert (folder.logs / "clush.txt").read_text() == "n1: begun"
