"""PID namespaces for tests, created by ``unshare``, as in a container."""

from __future__ import annotations

import shutil
import subprocess

import pytest

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
