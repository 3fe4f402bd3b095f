"""The libraries of the probe and of the supervisor work without their unneeded imports."""

from __future__ import annotations

import sys

import pytest

from tests.harness.programs import run_program

PROBE = """
import sys
from sentinel.host.process_setup import without_ctypes_util
from sentinel.probe.process_info import NodeWatch
with without_ctypes_util():
    import pynvml
opens = NodeWatch()
assert opens.add(sys.argv[1], print)
heavy = {"ctypes.util", "tempfile", "shutil", "lzma"} & sys.modules.keys()
assert not heavy, heavy
from ctypes.util import find_library  # the real module is available again
assert find_library("c")
"""

SUPERVISOR = """
import sys
import sentinel.cli.daemon.run
from sentinel.host.event_lines import structlog
heavy = {"rich", "rich.console", "pygments", "attr"} & sys.modules.keys()
assert not heavy, heavy
import rich.console  # the real module is available again
"""

LIBRARY = """
from sentinel import Supervisor
import structlog.dev
assert structlog.dev.rich is not None
"""


@pytest.mark.parametrize(
    "script", [PROBE, SUPERVISOR, LIBRARY], ids=["probe", "supervisor", "library"]
)
def test_the_libraries_import_nothing_unneeded(script: str) -> None:
    # -S: without site, which imports more of the library where packages are linked.
    paths = f"import sys; sys.path[:] = {sys.path!r}\n"
    done = run_program(sys.executable, "-S", "-c", paths + script, __file__)
    assert done.returncode == 0, done.stderr
