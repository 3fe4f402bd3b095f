"""The probe's libraries work without their unneeded imports."""

from __future__ import annotations

import subprocess
import sys

from tests.harness.timing import TIMEOUT_S

SCRIPT = """
import sys
from sentinel.probe.import_stubs import without_ctypes_util
from sentinel.probe.device_watch import NodeWatch
with without_ctypes_util():
    import pynvml
opens = NodeWatch()
assert opens.add(sys.argv[1], print)
heavy = {"ctypes.util", "tempfile", "shutil", "lzma"} & sys.modules.keys()
assert not heavy, heavy
from ctypes.util import find_library  # the real module is available again
assert find_library("c")
"""


def test_the_binding_and_the_watch_import_nothing_unneeded() -> None:
    # -S: without site, which imports more of the library where packages are linked.
    paths = f"import sys; sys.path[:] = {sys.path!r}\n"
    command = [sys.executable, "-S", "-c", paths + SCRIPT, __file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
