"""The last burn-in's verdict of each GPU, from the reports in the state folder."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from sentinel.host.stores.run_reports import (
    LastVerdict,
    last_verdicts,
    report_paths,
    sorted_reports,
)

#: How often the folder is looked at, in seconds. A burn-in takes hours.
_LOOK_EVERY_S = 30.0


class BurninVerdicts:
    """The verdicts, read again when a report has been added or changed.

    Args:
        state: The state folder.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._read: dict[Path, float] = {}
        #: By UUID.
        self.gpus: dict[str, LastVerdict] = {}

    async def run(self) -> None:
        """Look for new reports from time to time, forever."""
        while True:
            # In a thread: a disk can be slow. Without one, the known verdicts stay.
            with contextlib.suppress(OSError, RuntimeError):
                await asyncio.to_thread(self.look)
            await asyncio.sleep(_LOOK_EVERY_S)

    def look(self) -> None:
        """Read the reports if any has been added, removed or changed.

        Raises:
            OSError: The folder cannot be read.
        """
        paths = sorted_reports(report_paths(self._state))
        if paths == self._read:
            return
        found = last_verdicts(paths)
        self.gpus.update(found)  # in place and without an empty moment: it is read at any time
        for uuid in self.gpus.keys() - found:
            del self.gpus[uuid]
        self._read = paths
