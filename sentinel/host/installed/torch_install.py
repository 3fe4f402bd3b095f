"""The command that installs a torch for the driver of this host.

CUDA 13 needs driver 580 or newer, CUDA 12 driver 525, and CUDA 11 driver 450: a torch runs on every
driver of its major version or newer (NVIDIA, CUDA Compatibility, "Minor Version Compatibility",
table 1: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).

torch publishes a package index for each CUDA that it is built for. The newest torch has builds for
CUDA 13.0 and 12.6 (https://github.com/pytorch/pytorch/issues/190355), until 2.15 drops 12.6
(https://github.com/pytorch/pytorch/issues/190385); torch 2.7 is the last one for CUDA 11.8
(https://github.com/pytorch/pytorch/issues/147383). The builds for CUDA 13 have no kernels for GPUs
older than Turing (compute capability 7.5), which need those for CUDA 12.6.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
from dataclasses import dataclass

from sentinel.host.installed.packages import Version, version_of

#: By the oldest driver, newest first: the index with torch's builds, and the requirement.
BUILDS: tuple[tuple[Version, str, str], ...] = (
    ((580,), "https://download.pytorch.org/whl/cu130", "torch"),
    ((525,), "https://download.pytorch.org/whl/cu126", "torch"),
    ((450, 80), "https://download.pytorch.org/whl/cu118", "torch"),
)

#: Where torch's own selector is, for a driver that is unknown.
_SELECTOR = "https://pytorch.org/get-started/locally/"


@dataclass(frozen=True, kw_only=True)
class Installer:
    """What installs packages for the Python that runs Sentinel."""

    #: The path of that Python.
    python: str = "python"
    #: Whether its environment has pip; those of uv have none.
    pip: bool = True

    def command(self, requirement: str, index: str, *, replace: bool) -> str:
        """Return the command that installs a package from an index, instead of another build.

        Builds differ in their local version alone, so a plain installation keeps the present one.
        """
        python = shlex.quote(self.python)
        if not self.pip:
            instead = f" --reinstall-package {requirement}" if replace else ""
            return f"uv pip install --python {python}{instead} {requirement} --index-url {index}"
        remove = f"{python} -m pip uninstall --yes {requirement} && " if replace else ""
        return f"{remove}{python} -m pip install {requirement} --index-url {index}"


def installer() -> Installer:
    """Find out what installs packages for this Python."""
    return Installer(python=sys.executable, pip=importlib.util.find_spec("pip") is not None)


def how_to_install(driver: str | None, tool: Installer, *, replace: bool = False) -> str:
    """Return a sentence with the command that installs a torch for a driver.

    Args:
        driver: The version of the driver, such as ``"580.65.06"``, or None if it is unknown.
        tool: What installs packages.
        replace: Whether another build of torch is installed.
    """
    version = version_of(driver)
    for oldest, index, requirement in BUILDS:
        if version >= oldest:
            return f"Run: {tool.command(requirement, index, replace=replace)}"
    if version:
        return "No build of torch 2.6 or newer runs on this driver: install driver 525 or newer."
    return f"Install a CUDA build of torch; {_SELECTOR} has the command."
