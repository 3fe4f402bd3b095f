"""PID namespaces for tests: what a container has, made by ``unshare``."""

from __future__ import annotations

import shutil
import subprocess

import pytest

#: The beginning of a command that is to see no process but its own; it dies with ``unshare``.
OWN_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def _allowed() -> bool:
    if shutil.which("unshare") is None:
        return False
    made = subprocess.run([*OWN_NAMESPACE, "true"], capture_output=True, check=False)
    return made.returncode == 0


needs_namespaces = pytest.mark.skipif(
    not _allowed(), reason="needs the right to make PID namespaces, and util-linux's unshare"
)
