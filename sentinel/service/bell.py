"""Wakes everybody in this process who waits for news of one kind."""

from __future__ import annotations

import asyncio
import contextlib

__all__ = ["Bell"]


class Bell:
    """Rung by one, heard by all who wait at that moment."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def ring(self) -> None:
        """Wake everybody who waits."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Return at the next ring, or after ``seconds``."""
        rung = self._next
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await rung.wait()
