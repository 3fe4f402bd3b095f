"""The build backend (PEP 517): setuptools, plus the generated files in wheels.

A wheel contains the manual page, the completions and the OpenAPI document. Generating them imports
the commands and the API, so a wheel needs some of the dependencies at build time. An editable
install has none of them.

The description on a package index is README.md with absolute links, or without links to other files
as long as the project has no public address.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
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
VERSION = ROOT / "sentinel" / "protocol" / "__init__.py"

#: The dependencies that the commands and the API import when their documents are generated.
_IMPORTED = {
    *("click", "fastapi", "prometheus-client", "psutil", "pydantic", "rich"),
    *("setproctitle", "structlog"),
}

Settings = Mapping[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """List what a wheel needs at build time, with the bounds of pyproject.toml."""
    write_index_page()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    imported = [
        requirement
        for requirement in project["dependencies"]
        if re.split(r"[^\w-]", requirement, maxsplit=1)[0] in _IMPORTED
    ]
    return [*build_meta.get_requires_for_build_wheel(config_settings), *imported]


def write_index_page() -> None:
    """Write docs/index_page.md: README.md with links that work on the page of a package index."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = re.search(r'^__version__ = "(.+)"', VERSION.read_text(), re.MULTILINE)
    if version is None:
        raise ValueError(f"{VERSION} has no version")
    repository = project.get("urls", {}).get("Repository")
    text = absolute_links((ROOT / "README.md").read_text(), repository, version[1])
    (DOCS / "index_page.md").write_text(text)


def absolute_links(text: str, repository: str | None, version: str) -> str:
    """Make the relative links of a document absolute: to this version in the repository.

    Without a repository, only the text of a link is left, and nothing of a picture.
    """

    def absolute(link: re.Match[str]) -> str:
        image, label, target = link.groups()
        if re.match(r"[a-z]+:|#", target):
            return link[0]
        if repository is None:
            return "" if image else label
        return f"{image}[{label}]({repository}/{'raw' if image else 'blob'}/v{version}/{target})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", absolute, text)


def build_editable(
    wheel_directory: str,
    config_settings: Settings = None,
    metadata_directory: str | None = None,
) -> str:
    """Build an editable wheel."""
    write_index_page()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Build a source distribution."""
    write_index_page()
    return build_meta.build_sdist(sdist_directory, config_settings)


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """List what an editable wheel needs at build time."""
    write_index_page()
    return build_meta.get_requires_for_build_editable(config_settings)


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """List what a source distribution needs at build time."""
    write_index_page()
    return build_meta.get_requires_for_build_sdist(config_settings)


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    """Write the metadata of an editable wheel."""
    write_index_page()
    return build_meta.prepare_metadata_for_build_editable(metadata_directory, config_settings)


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    """Write the metadata of a wheel."""
    write_index_page()
    return build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(
    wheel_directory: str,
    config_settings: Settings = None,
    metadata_directory: str | None = None,
) -> str:
    """Generate the files that pyproject.toml names as data files, then build the wheel."""
    sys.path[:0] = [str(ROOT), str(DOCS)]
    from generate import FILES, write

    for name in FILES:
        write(name)
    write_index_page()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


class SourceDistribution(sdist):
    """A source distribution with this backend, without which it could not be built."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Add the scripts of this folder to the files that setuptools finds."""
        scripts = [str(path.relative_to(ROOT)) for path in DOCS.glob("*.py")]
        super().make_release_tree(base_dir, [*files, *scripts])
