"""An empty folder of a run, and the report of one node, which the invented fleets vary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sentinel.fleet.run_folder import FleetFolder
from tests.harness.example_fleet import node_report


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the report of a node of eight GPUs that pass."""
    return node_report(tmp_path_factory.mktemp("node"))


@pytest.fixture
def folder(tmp_path: Path) -> FleetFolder:
    found = FleetFolder(path=tmp_path / "run")
    found.create()
    return found
