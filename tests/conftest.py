"""What all tests share: the GPUs of tests of whole sentinels, real ones if there are any."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.harness.fake_nvml import COMPILER, NO_COMPILER, build
from tests.harness.gpu_environment import TESTS, Ground, RealGround, SimulatedGround

# How long an example takes says how busy the host is.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# What it asserts is what its tests assert.
pytest.register_assert_rewrite("histories")


def pytest_configure() -> None:
    """Let signals mean to what tests start what they mean, however the tests were started.

    What a shell without job control runs in the background ignores Ctrl+C, and ``nohup`` has
    hang-ups ignored; those whom that starts would do so, too.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
        pytest.skip("needs a real NVIDIA GPU")


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.gpu)])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    """Return simulated GPUs, and once more the host's own: what must hold must hold on both."""
    return RealGround(tmp_path) if request.param == "real" else SimulatedGround(tmp_path)


@pytest.fixture
def simulated(tmp_path: Path) -> SimulatedGround:
    """Return simulated GPUs, for what cannot be done to a real one."""
    return SimulatedGround(tmp_path)


@pytest.fixture
def real(tmp_path: Path) -> RealGround:
    """Return the host's own GPUs, for what a simulated one cannot show."""
    return RealGround(tmp_path)


@pytest.fixture
def fake_torch(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have stressors on simulated GPUs import what they need of torch, and not all of it."""
    if request.node.get_closest_marker("gpu"):
        return
    folder = tmp_path / "thin"
    folder.mkdir()
    (folder / "torch.py").symlink_to(TESTS / "fake_torch.py")
    paths = [str(folder), str(TESTS), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a pretended driver of today, built once."""
    if COMPILER is None:
        pytest.skip(NO_COMPILER)
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of its own with room for one page."""
    folder = tmp_path / "disk"
    folder.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=4k,mode=700", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
