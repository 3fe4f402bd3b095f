"""Fixtures and settings of all tests: time limits, groups, GPUs, a fake torch, a fake driver."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from sentinel.host.paths import SOCKET_VARIABLE, SOCKETS, places
from sentinel.protocol.probe import ProbeSpec
from sentinel.supervisor import child_process
from tests.harness.fake_nvml import (
    COMPILER,
    NO_COMPILER,
    OPEN,
    Ask,
    Step,
    answers,
    build,
    shared_folder,
)
from tests.harness.gpu_environment import GpuHost, RealHost, SimulatedHost, replace_torch
from tests.harness.probe_harness import ProbeHarness
from tests.harness.scheduling import (
    SharedSetupScheduling,
    add_options,
    leave_out_if_late,
    list_left_out,
    mixed,
    rotated,
)
from tests.harness.timing import TEST_TIMEOUT_S, TIMEOUT_S

if TYPE_CHECKING:
    from tests.harness.command_line import CommandLine
    from tests.harness.stub_daemon import StubDaemon

#: The duration of an example depends on what else the host does.
_UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("common", _UNHURRIED, max_examples=5, stateful_step_count=20)
settings.register_profile("long", _UNHURRIED, max_examples=100, stateful_step_count=50)
settings.register_profile("fuzz", _UNHURRIED, max_examples=1_000)
settings.load_profile("common")

# Each worker rewrites the assertions of all test files, for some seconds: keep the results for the
# next run, even where the environment forbids bytecode.
sys.dont_write_bytecode = False
# pytest rewrites the assertions of test files only, unless asked to.
pytest.register_assert_rewrite("tests.harness.state_machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Restore the default action of signals, and scale the time limit of a test.

    A shell without job control starts background processes with SIGINT ignored, and ``nohup`` with
    SIGHUP ignored. Processes started by tests inherit that.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if config.option.timeout is None:
        config.option.timeout = TEST_TIMEOUT_S


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the tests that need the schemathesis plugin if it is disabled."""
    if config.pluginmanager.hasplugin("schemathesis"):
        return None
    return collection_path.name == "test_openapi_conformance.py" or None


def pytest_collection() -> None:
    """Pause the garbage collector: nothing that collection creates is garbage."""
    gc.disable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Change the order of tests where several workers share them, in all workers alike."""
    if config.option.rotate is not None:
        items[:] = rotated(items, config.option.rotate)
    elif "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = mixed(items)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharedSetupScheduling:
    return SharedSetupScheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def _own_records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the records of daemons apart from those of the user, and of other workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _slow_exits() -> Iterator[None]:
    """Wait longer for killed processes: on a busy machine, an exit may take over a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child_process, "_KILL_TIMEOUT_S", TIMEOUT_S)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_real_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail if a test has made the state of its daemon in the folder of root's real one.

    Other daemons of the host may do that meanwhile, so only folders of sockets in the temporary
    folder of these tests count: their names have the hash of the socket's path.
    """
    real = Path("/var/lib/sentinel") / SOCKETS
    before = {path.name for path in real.glob("*")}
    yield
    new = {path.name for path in real.glob("*")} - before
    names = {name.rpartition("-")[0] for name in new}
    folders = (path for path in tmp_path_factory.getbasetemp().rglob("*") if path.is_dir())
    ours = {
        places({SOCKET_VARIABLE: str(folder / name)}, 0).state.name
        for folder in (folders if new else ())
        for name in names
    }
    assert not new & ours, f"tests have made {sorted(new & ours)} in {real}: set STATE_DIRECTORY"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    leave_out_if_late(item.config)
    if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
        pytest.skip("needs a real NVIDIA GPU")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    list_left_out(terminalreporter)


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.gpu)])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> GpuHost:
    """Provide simulated GPUs, and the GPUs of the host in a second run of the test."""
    return RealHost(tmp_path) if request.param == "real" else SimulatedHost(tmp_path)


@pytest.fixture
def simulated(tmp_path: Path) -> SimulatedHost:
    """Provide simulated GPUs, for tests that real ones do not allow."""
    return SimulatedHost(tmp_path)


@pytest.fixture
def real(tmp_path: Path) -> RealHost:
    """Provide the GPUs of the host, for tests that simulated ones do not allow."""
    return RealHost(tmp_path)


@pytest.fixture
def fake_torch(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace torch in stressors on simulated GPUs by a fake."""
    if request.node.get_closest_marker("gpu"):
        return
    replace_torch(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a recent fake driver once per run; return its folder."""
    if COMPILER is None:
        pytest.skip(NO_COMPILER)
    return build(shared_folder(tmp_path_factory))


@pytest.fixture
def start_probe() -> Iterator[Callable[..., ProbeHarness]]:
    """Return a function that starts a probe; all probes end with the test."""
    with contextlib.ExitStack() as stack:

        def start(spec: ProbeSpec, send_buffer: int | None = None) -> ProbeHarness:
            probe = ProbeHarness(spec, send_buffer)
            stack.callback(probe.close)
            return probe

        yield start


@pytest.fixture
def ask(nvml_library: Path, tmp_path: Path) -> Ask:
    """Return a function that opens NVML, makes calls to it and returns their results."""

    def make(*steps: Step) -> list[Any]:
        return answers(nvml_library, tmp_path / "faults", *OPEN, *steps)[len(OPEN) :]

    return make


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system with room for one page."""
    folder = tmp_path / "disk"
    folder.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=4k,mode=700", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Provide the command line, whose commands run in this process."""
    from tests.harness.command_line import CommandLine  # few tests need it

    return CommandLine(capsys)


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubDaemon]:
    """Provide a stub of the daemon that commands find, and a terminal of 80 columns."""
    from tests.harness.stub_daemon import stub_daemon

    monkeypatch.setenv("SENTINEL_SOCKET", str(tmp_path / "s"))
    monkeypatch.setenv("COLUMNS", "80")
    with stub_daemon(tmp_path / "s") as daemon:
        yield daemon
