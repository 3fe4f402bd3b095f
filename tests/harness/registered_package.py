"""The metadata of a package that is installed, for entry points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def register(folder: Path, group: str, name: str, entries: Mapping[str, str]) -> str:
    """Write the metadata of a package with these entry points; return the path to import from."""
    info = folder / name / f"{name}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    rows = "\n".join(f"{key} = {place}" for key, place in entries.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{rows}\n")
    return str(info.parent)
