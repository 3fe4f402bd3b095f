"""A look at all GPUs ends with the signal that ends its command."""

from __future__ import annotations

import signal

import pytest

from sentinel.config.model import Config
from sentinel.diagnostics.survey import survey
from sentinel.errors import EndedEarlyError
from sentinel.supervisor.probe_process import ProbeProcess
from tests.harness.gpu_environment import SimulatedHost


def test_a_signal_that_comes_while_the_probe_ends_is_not_lost(
    simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = ProbeProcess.close

    def signalled(probe: ProbeProcess) -> bool:
        signal.raise_signal(signal.SIGTERM)
        return close(probe)

    monkeypatch.setattr(ProbeProcess, "close", signalled)
    monkeypatch.setenv("SENTINEL_SIM_DIR", simulated.environment()["SENTINEL_SIM_DIR"])
    with pytest.raises(EndedEarlyError, match="SIGTERM"):
        survey(Config(), simulate=1)
