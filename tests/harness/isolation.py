"""A second user of the host, whom only root can provide; PID namespaces; adopted orphans."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from sentinel.host.simulation import Registry
from tests.harness.gpu_environment import ROOT, SimulatedHost
from tests.harness.programs import run_program

#: The user ``nobody`` of most hosts, who owns no file.
STRANGER = 65534
#: From linux/prctl.h: orphaned descendants become children of the calling process.
_PR_SET_CHILD_SUBREAPER = 36


@contextmanager
def adopted_orphans() -> Iterator[None]:
    """Make orphaned descendants children of this process, which can wait for them."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0
    try:
        yield
    finally:
        assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 0) == 0


def is_private(file: str) -> bool:
    """Check whether a folder above a file keeps other users out, as /root often does."""
    return any(not folder.stat().st_mode & stat.S_IXOTH for folder in Path(file).resolve().parents)


#: Skips a test that needs a second user, who can run this Python.
needs_root = pytest.mark.skipif(
    os.getuid() != 0 or is_private(sys.executable),
    reason="needs root, to become another user, and a Python that other users can run",
)


@contextmanager
def public_host(gpus: int = 1) -> Iterator[SimulatedHost]:
    """Simulate GPUs in a folder that root and the other user can use.

    Skips the test if the other user cannot read the sources.
    """
    if run_as(STRANGER, [sys.executable, "-c", "import psutil, sentinel, tests"]).returncode:
        pytest.skip("other users cannot read these sources")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        simulated = Path(folder) / "gpus"
        simulated.mkdir()
        host = SimulatedHost(simulated)
        for gpu in Registry.create(simulated, gpus).gpus():
            (simulated / gpu.uuid / "allocation.lock").touch()
        subprocess.run(["chgrp", "-R", str(STRANGER), simulated], check=True)
        subprocess.run(["chmod", "-R", "g+rwX", simulated], check=True)
        yield host


def run_as(
    uid: int, command: list[str], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command as a user, in the folder of the sources."""
    return run_program(*command, user=uid, group=uid, extra_groups=[], env=environment, cwd=ROOT)


#: A prefix that runs a command in a new PID namespace; the command dies with ``unshare``.
OWN_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def _allowed() -> bool:
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run([*OWN_NAMESPACE, "true"], capture_output=True, check=False)
    return done.returncode == 0


needs_namespaces = pytest.mark.skipif(
    not _allowed(), reason="needs the right to create PID namespaces, and util-linux's unshare"
)
