"""Add up what each GPU has proved, over all daemons, and keep it in a file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from sentinel.host.stores import verified_store
from sentinel.host.stores.verified_store import StoredWork
from sentinel.protocol.views import GpuView, VerifiedCounts

#: How often the file is written if something has changed, in seconds. A crash of the host costs
#: that much work.
_WRITE_EVERY_S = 60.0


class VerifiedTotal:
    """The verified work of each GPU.

    Args:
        path: The file.
        began: When the daemon began, which tells its counts from those of the one before.
        report_warning: Called when the file cannot be read or written, once until it can.
    """

    def __init__(self, path: Path, began: float, report_warning: Callable[[str], None]) -> None:
        self._path = path
        self._began = began
        self._report_warning = report_warning
        #: By UUID.
        self.gpus: dict[str, StoredWork] = {}
        self._written: Mapping[str, StoredWork] = {}
        self._has_failed = False
        self._loaded = False

    def update(self, view: GpuView) -> None:
        """Add what a view has more than the one before."""
        if not self._loaded:
            self._load()
        offset = time.time() - time.monotonic()
        work = self.gpus.get(view.uuid)
        if work is None:
            work = StoredWork(index=view.index, name=view.name, since=round(view.at + offset, 3))
        if work.daemon != self._began:
            work = replace(work, daemon=self._began, counted=VerifiedCounts())
        counts = view.verified.counts
        if counts != work.counted:
            work = replace(
                work,
                index=view.index,
                serial=view.serial,
                total=verified_store.add(work.total, counts, work.counted),
                counted=counts,
            )
        if view.verified.at is not None:
            last = round(view.verified.at + offset, 1)
            work = replace(work, last=last, workload=view.verified.workload)
        self.gpus[view.uuid] = work

    async def run(self) -> None:
        """Write the file from time to time, forever."""
        while True:
            await asyncio.sleep(_WRITE_EVERY_S)
            await self.store()

    async def store(self) -> None:
        """Write the file if something has changed; report the first failure."""
        gpus = dict(self.gpus)
        if gpus == self._written:
            return
        try:  # in a thread: a disk can be slow
            saved = await asyncio.to_thread(verified_store.save, self._path, gpus, self._written)
        except (OSError, RuntimeError) as error:  # the latter if the host refuses the thread
            if not self._has_failed:
                reason = error.strerror if isinstance(error, OSError) else error
                why = f"{self._path}: cannot be written: {reason}; verified work is not kept"
                self._report_warning(why)
            self._has_failed = True
            return
        for uuid, work in gpus.items():  # what another daemon of the same GPU has added
            more = verified_store.add(self.gpus[uuid].total, saved[uuid].total, work.total)
            self.gpus[uuid] = replace(self.gpus[uuid], total=more)
        added = {uuid: replace(one, total=saved[uuid].total) for uuid, one in gpus.items()}
        self._written, self._has_failed = added, False

    def _load(self) -> None:
        stored, warning = verified_store.load(self._path)
        self.gpus.update(stored)
        self._written, self._loaded = stored, True
        if warning is not None:
            self._report_warning(warning)
