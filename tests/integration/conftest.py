"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.daemon_harness import Daemon, isolated_daemon
from tests.harness.gpu_environment import SimulatedHost


@pytest.fixture
def daemon(simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """Provide a daemon on simulated GPUs that is not started yet, and end it later."""
    with isolated_daemon(simulated, monkeypatch) as one:
        yield one
