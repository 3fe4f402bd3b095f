"""Keeps the file of the reservations as the supervisor shows them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from sentinel.api.state.event_buffer import Broadcast
from sentinel.host import reservation_store
from sentinel.protocol.views import Reservation

#: A file that could not be written is tried again after so many seconds.
_TRY_AGAIN = 5.0


class Records:
    """The file, and what is to be in it.

    Args:
        path: The file.
        complain: Called with what is wrong when it cannot be written, once until it can.
    """

    def __init__(self, path: Path, report_warning: Callable[[str], None]) -> None:
        self._path = path
        self._report_warning = report_warning
        self._wanted: tuple[Reservation, ...] | None = None
        self._written: tuple[Reservation, ...] | None = None
        self._broadcast = Broadcast()

    def want(self, wanted: tuple[Reservation, ...]) -> None:
        """Let the file have these reservations soon."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._broadcast.wake()

    async def written(self, seconds: float) -> bool:
        """Return whether the file has what it is to have, within so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._written != self._wanted:
                    await self._broadcast.wait(seconds)
        return self._written == self._wanted

    async def keep(self) -> None:
        """Write the file whenever it is not as it is to be, for ever."""
        boot = reservation_store.boot_id()
        said = False
        while True:
            wanted = self._wanted
            if wanted is None or wanted == self._written:
                await self._broadcast.wait(_TRY_AGAIN)
                continue
            now = {"wall": time.time(), "monotonic": time.monotonic()}
            body = reservation_store.to_stored(wanted, **now, boot=boot)
            try:  # in a thread: a disk may take its time
                await asyncio.to_thread(reservation_store.save, self._path, body)
            except OSError as error:
                if not said:
                    self._report_warning(f"{self._path}: cannot be written: {error.strerror}")
                said = True
                await self._broadcast.wait(_TRY_AGAIN)
                continue
            said = False
            self._written = wanted
            self._broadcast.wake()
