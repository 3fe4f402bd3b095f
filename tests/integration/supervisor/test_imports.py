"""What the processes of a whole daemon have loaded: the supervisor nothing that can hang or crash.

The contracts of imports are about packages, and allow what one imports through another. These tests
are about the processes.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from sentinel.config.specs import WORKLOADS
from tests.harness.daemon_harness import QUICK, Daemon, settings_file
from tests.harness.fake_nvml import NvmlHost
from tests.harness.programs import run_program
from tests.harness.registered import register_package
from tests.harness.sentinel_process import eventually, title_of

#: The first finder is asked for each module that is not loaded yet: before it is loaded, by the
#: import or by the finder of trusted code, or only to find its file. Python imports this module
#: before any other one, in every process.
LOG = """
import os, sys

class Log:
    def find_spec(self, name, path=None, target=None):
        caller = sys._getframe(2)
        importing = (caller.f_code.co_name, caller.f_back.f_code.co_name)
        if "_find_and_load_unlocked" not in importing:
            return
        with open(os.path.join(os.environ["IMPORT_LOG"], str(os.getpid())), "a") as file:
            file.write(f"{name}\\n")

sys.meta_path.insert(0, Log())
"""
#: What the supervisor must not import, and shared libraries that it must not map. The log renders
#: its lines by structlog, which imports asyncio.
FORBIDDEN = {
    *("fastapi", "h11", "numpy", "prometheus_client", "pydantic", "pynvml"),
    *("sqlite3", "starlette", "torch", "uvicorn", "bad_workloads"),
}
LIBRARIES = re.compile(r"torch|libcuda|nvidia-ml|sqlite|numpy|pydantic")

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_torch")]


@pytest.fixture(autouse=True)
def imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Log the imports of all processes; return the folder with a file for each process."""
    folder = tmp_path / "imports"
    folder.mkdir()
    (tmp_path / "sitecustomize.py").write_text(LOG)
    monkeypatch.setenv("IMPORT_LOG", str(folder))
    package = register_package(
        tmp_path, WORKLOADS, "own_package", {"own": "bad_workloads:well_behaved"}
    )
    for path in (package, str(tmp_path)):
        monkeypatch.setenv("PYTHONPATH", path, prepend=os.pathsep)
    return folder


def imported(folder: Path, pid: int) -> set[str]:
    """Return the top-level names of all that a process has imported since it was started."""
    return {name.partition(".")[0] for name in (folder / str(pid)).read_text().split()}


def assert_small(folder: Path, pid: int) -> None:
    """Check what a supervisor has loaded."""
    names = imported(folder, pid)
    assert "sentinel" in names
    assert not names & FORBIDDEN
    assert not LIBRARIES.findall(Path(f"/proc/{pid}/maps").read_text())


def test_the_supervisor_of_a_daemon_loads_nothing_that_can_hang_crash_or_grow(
    daemon: Daemon, imports: Path
) -> None:
    # In a process of its own: the one of the tests does not find the package.
    words = ["start", "--simulate", "1", *QUICK[:4], "--workload", "own", *QUICK[-2:]]
    run_program(sys.executable, "-m", "sentinel", *words, check=True)
    daemon.wait_until_occupied(0)
    assert_small(imports, daemon.pid)
    assert {"torch", "bad_workloads"} <= imported(imports, daemon.gpu().pid or 0)
    assert {"fastapi", "sqlite3"} <= imported(imports, daemon.child("sentinel: api").pid)

    before = daemon.gpu().pid
    settings_file(daemon.host.folder).write_text('memory.target = "50%"\n')
    os.kill(daemon.pid, signal.SIGHUP)
    eventually(lambda: daemon.gpu().pid not in {None, before})
    daemon.client.reserve([0], seconds=3600)
    with daemon.host.job() as job:
        assert job.got_memory()
    daemon.run("restart", "--wait", "0")
    assert_small(imports, daemon.pid)


def test_the_supervisor_loads_no_nvml(nvml_library: Path, imports: Path, tmp_path: Path) -> None:
    nvml = NvmlHost(tmp_path, nvml_library)
    with nvml.sentinel(1, *QUICK[:4], "--workload", "own", *QUICK[-2:]) as sentinel:
        sentinel.wait_for("stressor.ready")
        (probe,) = (p for p in sentinel.children() if "sentinel: probe" in title_of(p))
        assert "pynvml" in imported(imports, probe.pid)
        with nvml.job() as job:
            assert job.got_memory()
        assert_small(imports, sentinel.process.pid)
