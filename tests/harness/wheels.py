"""Build the wheel of this checkout, and install it without torch or beside a stand-in for torch."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.harness.gpu_environment import ROOT
from tests.harness.programs import run_program
from tests.harness.timing import MACHINE_SLOWNESS

#: The time to install what the index has; some files come from the network.
INSTALL_TIMEOUT_S = 300 * MACHINE_SLOWNESS

#: The version of the stand-in, as of a build that the package index does not have.
TORCH = "2.13.0+site"


def copy_of_the_sources(folder: Path) -> Path:
    """Copy what a build reads, without files that were generated earlier."""
    copy = folder / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    made = ("sentinel.1", "openapi.json", "completion", "index_page.md")
    ignored = shutil.ignore_patterns("__pycache__", "pictures", *made)
    for name in ("sentinel", "docs", "deploy"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    return copy


def call_hook(source: Path, hook: str, *args: str) -> Any:
    """Call a hook of the build backend as a frontend does; return what the hook returned."""
    script = (
        "import json, sys; sys.path.insert(0, 'docs'); import build_backend\n"
        "value = getattr(build_backend, sys.argv[1])(*sys.argv[2:])\n"
        "print(); print(json.dumps(value))"
    )
    done = run_program(sys.executable, "-c", script, hook, *args, cwd=source, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def build_wheel(folder: Path) -> Path:
    """Build the wheel with the packages of this environment."""
    source = copy_of_the_sources(folder)
    return source / str(call_hook(source, "build_wheel", "."))


def light_dependencies() -> list[str]:
    """List the dependencies of the package without torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [one for one in project["dependencies"] if not one.startswith("torch")]


class Environment:
    """A virtual environment without what is in this one.

    Args:
        folder: Where it is made.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.folder = folder
        self.bin = folder / "bin"
        self.python = self.bin / "python"
        (self.packages,) = folder.glob("lib/python*/site-packages")

    def pip(self, *words: str | Path) -> None:
        """Run pip; the test is skipped if there is no package index."""
        self.install([self.python, "-m", "pip", *words])

    def install(
        self, command: Sequence[str | Path], *, cwd: Path | None = None, **variables: str
    ) -> None:
        """Run a command that installs something into this environment."""
        environment = own_environment(VIRTUAL_ENV=str(self.folder), **variables)
        done = run_program(*command, cwd=cwd, env=environment, timeout=INSTALL_TIMEOUT_S)
        if any(text in done.stderr for text in ("Failed to establish", "connection", "dns error")):
            pytest.skip(f"there is no package index: {done.stderr[-300:]}")
        assert done.returncode == 0, done.stderr

    def files_of_torch(self) -> dict[str, bytes]:
        """Read all files of the torch in this environment."""
        paths = [*self.packages.glob("torch/*.py"), *self.packages.glob("torch-*/*")]
        return {str(path): path.read_bytes() for path in paths}

    def torch(self) -> str:
        """Read the version of the torch that an import finds; empty if there is none."""
        script = "import torch; print(torch.__version__)"
        return run_program(self.python, "-c", script, env=own_environment()).stdout.strip()


def add_torch(packages: Path, installer: str, version: str = TORCH) -> None:
    """Add a stand-in for the torch of a site: its metadata, and a package without CUDA."""
    package = packages / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (package / "version.py").write_text(f"__version__ = {version!r}\ncuda = '13.0'\n")
    info = packages / f"torch-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    (info / "INSTALLER").write_text(installer)
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    names = ("torch/__init__.py", "torch/version.py", f"{info.name}/METADATA")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in names))


def own_environment(**variables: str) -> dict[str, str]:
    """Return the variables of this process without those that show other packages."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | variables
