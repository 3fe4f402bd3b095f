"""Daemons in the registry and packages with entry points that tests make up."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from sentinel.host.registry import (
    DaemonRecord,
    describe_own,
    link,
    records_folder,
    take,
)


class RegisteredDaemons(ExitStack):
    """Registers daemons, whose files stay locked until the block ends."""

    def add(
        self,
        state: Path,
        *,
        alive: bool = True,
        since: float | None = None,
        **facts: str | int | None,
    ) -> DaemonRecord:
        """Register a daemon by its ``socket`` or ``run``; it has ended unless ``alive``."""
        own = describe_own(state, **facts)
        record = replace(own, since=own.since if since is None else since)
        path = Path(f"{record.socket or record.run}.json")
        entry = take(path, record)
        assert link(path, records_folder(os.environ, os.getuid()))
        if alive:
            self.callback(entry.release)
        else:
            entry.release()
        return replace(record, alive=alive, started=record.started if alive else 0)


def register_package(folder: Path, group: str, name: str, entries: Mapping[str, str]) -> str:
    """Write the metadata of a package with these entry points; return the path to import from."""
    info = folder / name / f"{name}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    rows = "\n".join(f"{key} = {place}" for key, place in entries.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{rows}\n")
    return str(info.parent)
