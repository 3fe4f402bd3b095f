"""Fixtures of the tests of the API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.api_harness import ApiServer
from tests.harness.history_harness import HistoryHarness


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Provide an API process with a TCP address to all tests of a file."""
    with ApiServer(tmp_path_factory.mktemp("service"), tcp=True) as api:
        yield api


@pytest.fixture
def api(service: ApiServer) -> ApiServer:
    """Provide the API process of the file, with a fake supervisor as at its start."""
    service.reset()
    return service


@pytest.fixture
def past(tmp_path: Path) -> Iterator[HistoryHarness]:
    """Provide a history in a file, with simulated time."""
    one = HistoryHarness(tmp_path / "history.db")
    yield one
    one.database.close()
