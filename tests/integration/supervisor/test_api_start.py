"""An API process that cannot start: GPUs are occupied in a terminal, and a daemon ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.errors import ExitCode
from tests.harness.daemon_harness import isolated_daemon
from tests.harness.gpu_environment import SimulatedHost


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide an environment in which the web server cannot be imported."""
    package = tmp_path / "broken"
    package.mkdir()
    (package / "uvicorn.py").write_text("raise ModuleNotFoundError(\"No module named 'uvicorn'\")")
    monkeypatch.setenv("PYTHONPATH", f"{package}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


@pytest.mark.long
@pytest.mark.usefixtures("broken", "fake_torch")
def test_gpus_are_occupied_in_a_terminal_although_the_api_cannot_start(
    simulated: SimulatedHost,
) -> None:
    with simulated.sentinel(1, "--workload", "hold", api=True) as sentinel:
        sentinel.wait_for("stressor.ready")
        failed = sentinel.wait_for("service.failed", count=2)
        assert failed["reason"] == "ModuleNotFoundError: No module named 'uvicorn'"
        assert sentinel.stop() == 0


@pytest.mark.long
@pytest.mark.usefixtures("broken")
def test_a_daemon_whose_api_cannot_start_ends_with_the_reason(
    simulated: SimulatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    with isolated_daemon(simulated, monkeypatch) as daemon:
        done = daemon.run_unchecked("start", "--simulate", "1")
        assert done.code == ExitCode.USAGE
        assert "the API cannot start: ModuleNotFoundError: No module named 'uvicorn'" in done.err
