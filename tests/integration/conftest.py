"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.browser import Browser, browser
from tests.harness.daemon_harness import Daemon, isolated_daemon
from tests.harness.gpu_environment import SimulatedHost


@pytest.fixture
def daemon(simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """Provide a daemon on simulated GPUs that is not started yet, and end it later."""
    with isolated_daemon(simulated, monkeypatch) as one:
        yield one


@pytest.fixture(scope="session")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Provide a browser; each page has a context of its own."""
    with browser(tmp_path_factory.mktemp("profile")) as running:
        yield running
