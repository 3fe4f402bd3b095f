"""Write the reservations to a file, from which a new daemon restores them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from sentinel.api.state.event_buffer import Broadcast
from sentinel.host import reservation_store
from sentinel.protocol.views import Reservation

#: The pause after a failed write.
_RETRY_S = 5.0


class ReservationWriter:
    """The file and its intended content.

    Args:
        path: The file.
        report_warning: Called when a write fails, once until a write succeeds.
    """

    def __init__(self, path: Path, report_warning: Callable[[str], None]) -> None:
        self._path = path
        self._report_warning = report_warning
        self._wanted: tuple[Reservation, ...] | None = None
        self._written: tuple[Reservation, ...] | None = None
        self._broadcast = Broadcast()

    def update(self, wanted: tuple[Reservation, ...]) -> None:
        """Set the reservations to write."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._broadcast.wake()

    async def wait_written(self, timeout_s: float) -> bool:
        """Wait until the file is up to date; return False after ``timeout_s`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._written != self._wanted:
                    await self._broadcast.wait(timeout_s)
        return self._written == self._wanted

    async def run(self) -> None:
        """Write the file after each update, forever."""
        boot = reservation_store.boot_id()
        warned = False
        while True:
            wanted = self._wanted
            if wanted is None or wanted == self._written:
                await self._broadcast.wait(_RETRY_S)
                continue
            now = {"wall": time.time(), "monotonic": time.monotonic()}
            body = reservation_store.to_stored(wanted, **now, boot=boot)
            try:  # in a thread: a disk can be slow
                await asyncio.to_thread(reservation_store.save, self._path, body)
            except OSError as error:
                if not warned:
                    self._report_warning(f"{self._path}: cannot be written: {error.strerror}")
                warned = True
                await self._broadcast.wait(_RETRY_S)
                continue
            warned = False
            self._written = wanted
            self._broadcast.wake()
