"""An empty folder of a run, and invented fleets, which vary the report of one node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sentinel.fleet.run_folder import FleetFolder
from tests.harness.example_fleet import Fleets, node_report


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the report of a node of four GPUs that pass."""
    return node_report(tmp_path_factory.mktemp("node"), gpus=4)


@pytest.fixture
def fleets(template: dict[str, Any], tmp_path: Path) -> Fleets:
    return Fleets(template, tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> FleetFolder:
    found = FleetFolder(path=tmp_path / "a run")
    found.create()
    return found
