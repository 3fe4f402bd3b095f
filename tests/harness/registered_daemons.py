"""Daemons in the registry that are this process, or have ended."""

from __future__ import annotations

import os
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
