"""Write what outlives the daemon to a file: its reservations, and its sessions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from sentinel.api.state.event_buffer import Broadcast
from sentinel.host.stores.timed_file import Clocks

T = TypeVar("T")

#: The pause after a failed write.
_RETRY_S = 5.0


@dataclass(frozen=True, kw_only=True)
class _Failure(Generic[T]):
    """What could not be written last, and why."""

    wanted: dict[str, T]
    why: str


class StoreWriter(Generic[T]):
    """A file and its intended content.

    Args:
        path: The file.
        save: Writes it, as of a moment; raises OSError if it cannot.
        id_of: Returns the id of one item.
        report_warning: Called when a write fails, once until a write succeeds.
    """

    def __init__(
        self,
        path: Path,
        save: Callable[[Path, tuple[T, ...], Clocks], None],
        id_of: Callable[[T], str],
        report_warning: Callable[[str], None],
    ) -> None:
        self._path = path
        self._save = save
        self._id_of = id_of
        self._report_warning = report_warning
        self._current: dict[str, T] | None = None
        self._added: list[T] = []
        #: By id.
        self._written: dict[str, T] | None = None
        self._failed: _Failure[T] | None = None
        #: How often a write was requested to test the disk, and how often one was tried.
        self._tests_wanted = self._tests_done = 0
        self._broadcast = Broadcast()

    def update(self, current: Iterable[T]) -> None:
        """Set what to write."""
        wanted = {self._id_of(item): item for item in current}
        if wanted != self._current:
            self._current = wanted
            self._broadcast.wake()

    @contextmanager
    def adding(self, item: T) -> Iterator[None]:
        """Write an item besides during the block, before the supervisor has it."""
        self._added.append(item)
        self._broadcast.wake()
        try:
            yield
        finally:
            self._added.remove(item)
            self._broadcast.wake()

    @property
    def _wanted(self) -> dict[str, T] | None:
        """What the file should have now, by id; None before the first update."""
        if self._current is None:
            return None
        return self._current | {self._id_of(item): item for item in self._added}

    async def test_disk(self, timeout_s: float) -> str | None:
        """Write the file as it is, to find out whether a change of it could be written.

        Returns:
            None, or why it cannot be written within ``timeout_s`` seconds.
        """
        self._tests_wanted += 1
        number, deadline = self._tests_wanted, time.monotonic() + timeout_s
        self._broadcast.wake()
        while self._tests_done < number:
            left = deadline - time.monotonic()
            if left <= 0:
                return f"{self._path}: not written within {timeout_s:.0f} s"
            await self._broadcast.wait(left)
        return None if self._failed is None else self._failed.why

    async def wait_written(self, timeout_s: float) -> str | None:
        """Wait until the file on disk has what it should have now.

        Returns:
            None, or why it could not be written within ``timeout_s`` seconds.
        """
        deadline = time.monotonic() + timeout_s
        while self._written is None or self._written != self._wanted:
            if self._failed is not None and self._failed.wanted == self._wanted:
                return self._failed.why
            left = deadline - time.monotonic()
            if left <= 0:
                return f"{self._path}: not written within {timeout_s:.0f} s"
            await self._broadcast.wait(left)
        return None

    async def run(self) -> None:
        """Write the file after each update, forever."""
        while True:
            wanted, test = self._wanted, self._tests_wanted
            if wanted is None or (wanted == self._written and self._tests_done == test):
                await self._broadcast.wait(_RETRY_S)
                continue
            try:  # in a thread: a disk can be slow
                await asyncio.to_thread(
                    self._save, self._path, tuple(wanted.values()), Clocks.read()
                )
            except (OSError, RuntimeError) as error:
                # A RuntimeError if the host refuses the thread.
                reason = error.strerror if isinstance(error, OSError) else error
                why = f"{self._path}: cannot be written: {reason}"
                if self._failed is None:
                    self._report_warning(why)
                self._failed, self._tests_done = _Failure(wanted=wanted, why=why), test
                self._broadcast.wake()
                await self._broadcast.wait(_RETRY_S)
                continue
            self._written, self._failed, self._tests_done = wanted, None, test
            self._broadcast.wake()
