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
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[Record] = []
        text = path.read_text() if path.exists() else ""
        for line in text.splitlines():
            # An interrupted run may have left half a line.
            with contextlib.suppress(ValueError):
                self.records.append(json.loads(line))
        if text and not text.endswith("\n"):
            with path.open("a") as file:
                file.write("\n")

    def add(self, record: Mapping[str, object]) -> None:
        """Append a record and flush it to the disk."""
        self.records.append(dict(record))
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def of(self, cell: str) -> list[Record]:
        """Return the records of a cell, in their order."""
        return [record for record in self.records if record["cell"] == cell]

    def rounds(self, cell: str) -> int:
        """Return the number of finished rounds of a cell."""
        return len({record["round"] for record in self.of(cell)})
