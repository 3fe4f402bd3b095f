"""The build backend (PEP 517): setuptools, plus the generated files in wheels.

A wheel contains the manual page and the OpenAPI document. Generating them imports the commands and
the API, so a wheel needs some of the dependencies at build time. An editable install has neither.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from setuptools.command.sdist import sdist

__all__ = [
    "SourceDistribution",
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

#: The dependencies that the commands and the API import when their documents are generated.
_IMPORTED = {
    *("click", "fastapi", "prometheus-client", "psutil", "pydantic", "rich"),
    *("setproctitle", "structlog"),
}

Settings = Mapping[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """List what a wheel needs at build time, with the bounds of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    imported = [
        requirement
        for requirement in project["dependencies"]
        if re.split(r"[^\w-]", requirement, maxsplit=1)[0] in _IMPORTED
    ]
    return [*build_meta.get_requires_for_build_wheel(config_settings), *imported]


def build_wheel(
    wheel_directory: str,
    config_settings: Settings = None,
    metadata_directory: str | None = None,
) -> str:
    """Generate the files that pyproject.toml names as data files, then build the wheel."""
    sys.path[:0] = [str(ROOT), str(DOCS)]
    from generate import FILES

    for name, text in FILES.items():
        (DOCS / name).write_text(text())
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


class SourceDistribution(sdist):
    """A source distribution with this backend, without which it could not be built."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Add the scripts of this folder to the files that setuptools finds."""
        scripts = [str(path.relative_to(ROOT)) for path in DOCS.glob("*.py")]
        super().make_release_tree(base_dir, [*files, *scripts])
