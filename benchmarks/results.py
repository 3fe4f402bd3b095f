"""The results file: one JSON object per line, appended when a measurement is done.

An interrupted run, or one with a budget, is continued by the next run over the same file.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Results:
    """The measurements so far.

    Args:
        path: The file; created by the first record.
        lane: The number of this process, if several write to the file side by side.
    """

    def __init__(self, path: Path, lane: int | None = None) -> None:
        self.path = path
        self._lane = {} if lane is None else {"lane": lane}
        self.records: list[Record] = []
        self._read = 0
        self.refresh()
        if path.exists() and self._read < path.stat().st_size:
            self._append(b"\n")  # an interrupted run has left half a line

    def refresh(self) -> None:
        """Read the records that this or another process has appended."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                self.records.append(json.loads(line))

    def add(self, record: Mapping[str, object]) -> None:
        """Append a record and flush it to the disk."""
        self._append(json.dumps({**record, **self._lane}).encode() + b"\n")
        self.refresh()

    def _append(self, line: bytes) -> None:
        # In one write: several processes may share the file.
        with self.path.open("ab", buffering=0) as file:
            file.write(line)
            os.fsync(file.fileno())

    def of(self, cell: str) -> list[Record]:
        """Return the records of a cell, in their order."""
        return [record for record in self.records if record["cell"] == cell]

    def rounds(self, cell: str, code: str | None = None) -> int:
        """Return the number of finished rounds of a cell, by all processes.

        Args:
            cell: The name of the cell.
            code: Count only the records of this code.
        """
        self.refresh()
        records = [one for one in self.of(cell) if code is None or one.get("code") == code]
        return len({(one.get("lane"), one["round"]) for one in records})
