"""A wheel has the manual page and the OpenAPI document; an editable install needs neither."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sentinel.cli.manpage import page
from tests.harness.gpu_environment import ROOT
from tests.harness.openapi_document import openapi_document


def copy_of_the_sources(folder: Path) -> Path:
    """Copy what a build reads, without files that were generated earlier."""
    copy = folder / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    ignored = shutil.ignore_patterns("__pycache__", "pictures", "sentinel.1", "openapi.json")
    for name in ("sentinel", "docs"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    return copy


def call_hook(source: Path, hook: str, *args: str) -> Any:
    """Call a hook of the build backend as a frontend does; return what the hook returned."""
    script = (
        "import json, sys; sys.path.insert(0, 'docs'); import build_backend\n"
        "value = getattr(build_backend, sys.argv[1])(*sys.argv[2:])\n"
        "print(); print(json.dumps(value))"
    )
    command = [sys.executable, "-c", script, hook, *args]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_an_editable_install_needs_no_dependency_at_build_time(tmp_path: Path) -> None:
    source = copy_of_the_sources(tmp_path)
    assert call_hook(source, "get_requires_for_build_editable") == []
    wheel = call_hook(source, "get_requires_for_build_wheel")
    assert "fastapi>=0.115" in wheel
    assert not any(requirement.startswith("torch") for requirement in wheel)


@pytest.mark.long  # an isolated build downloads what it needs
@pytest.mark.timeout(300)
def test_a_wheel_from_the_source_distribution_has_the_generated_files(tmp_path: Path) -> None:
    source = copy_of_the_sources(tmp_path)
    archive = source / call_hook(source, "build_sdist", ".")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(tmp_path)]
    subprocess.run([*command, str(archive)], capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = {name.partition("/share/")[2]: name for name in files.namelist()}
        assert files.read(names["man/man1/sentinel.1"]).decode() == page()
        assert json.loads(files.read(names["doc/sentinel/openapi.json"])) == openapi_document()
