"""What outlives the daemon, in files: reservations, sessions, faults, work; and verdicts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Generic, TypeVar

from sentinel.api.bodies import ProblemError
from sentinel.api.supervisor_link import Broadcast
from sentinel.host import verified_store
from sentinel.host.last_verdicts import LastVerdict, last_verdicts, report_paths, sorted_reports
from sentinel.host.timed_file import Clocks, TimedFile
from sentinel.host.verified_store import StoredWork
from sentinel.protocol.api_types import RepairOutcome
from sentinel.protocol.problem import Code
from sentinel.protocol.views import GpuView, KnownFaults, Reservation, Session, VerifiedCounts

T = TypeVar("T", Reservation, Session, KnownFaults)

#: The pause after a failed write.
_RETRY_S = 5.0
#: The time for a change to be written to the file.
_WRITE_TIMEOUT_S = 5.0

#: How often the folder is looked at, in seconds. A burn-in takes hours.
_LOOK_EVERY_S = 30.0

#: How often the file is written if something has changed, in seconds. A crash of the host costs
#: that much work.
_WRITE_EVERY_S = 60.0
#: Wrong results are written at once, since such a GPU may crash its host; this often at most.
_WRITE_WRONG_EVERY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class _Failure(Generic[T]):
    """What could not be written last, and why."""

    wanted: dict[str, T]
    why: str


class StoreWriter(Generic[T]):
    """A file and its intended content.

    Args:
        file: The kind of file.
        folder: Its folder.
        report_warning: Called with the subject when a write fails, once until a write succeeds.
    """

    def __init__(
        self, file: TimedFile[T], folder: Path, report_warning: Callable[[str, str], None]
    ) -> None:
        self._file: TimedFile[T] = file
        self._path = folder / file.name
        self._id_of = attrgetter(file.key)
        self._report_warning = report_warning
        #: By id; None before the first update.
        self._wanted: dict[str, T] | None = None
        #: By id, as before.
        self._written: dict[str, T] | None = None
        self._failed: _Failure[T] | None = None
        #: How often a write was requested to test the disk, and how often one was tried.
        self._tests_wanted = self._tests_done = 0
        self._broadcast = Broadcast()

    def update(self, current: Iterable[T]) -> None:
        """Set what to write."""
        wanted = {self._id_of(item): item for item in current}
        if wanted != self._wanted:
            self._wanted = wanted
            self._broadcast.wake()

    async def test_disk(self, otherwise: str) -> None:
        """Write the file as it is, to find out whether a change of it could be written.

        Raises:
            ProblemError: It cannot be written in time; the message begins with ``otherwise``.
        """
        self._tests_wanted += 1
        number = self._tests_wanted
        self._broadcast.wake()
        await self._wait(lambda: self._tests_done >= number, otherwise)
        if self._failed is not None:
            raise _not_written(otherwise, self._failed.why)

    async def wait_written(self, otherwise: str) -> None:
        """Wait until the file on disk has what it should have now.

        Raises:
            ProblemError: It cannot be written in time; the message begins with ``otherwise``.
        """

        def has_failed() -> bool:
            return self._failed is not None and self._failed.wanted == self._wanted

        def is_written() -> bool:
            return self._written is not None and self._written == self._wanted

        await self._wait(lambda: is_written() or has_failed(), otherwise)
        if self._failed is not None and not is_written():
            raise _not_written(otherwise, self._failed.why)

    async def finish(self, timeout_s: float) -> None:
        """Wait until the file has what it should have, or cannot; at most so many seconds."""
        if self._wanted is None:
            return
        with contextlib.suppress(TimeoutError, ProblemError):
            async with asyncio.timeout(timeout_s):
                await self.wait_written("")

    async def _wait(self, is_settled: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + _WRITE_TIMEOUT_S
        while not is_settled():
            left = deadline - time.monotonic()
            if left <= 0:
                why = f"{self._path}: not written within {_WRITE_TIMEOUT_S:.0f} s"
                raise _not_written(otherwise, why)
            await self._broadcast.wait(left)

    async def run(self) -> None:
        """Write the file after each update, forever."""
        while True:
            wanted, test = self._wanted, self._tests_wanted
            if wanted is None or (wanted == self._written and self._tests_done == test):
                await self._broadcast.wait(_RETRY_S)
                continue
            try:  # in a thread: a disk can be slow
                await asyncio.to_thread(
                    self._file.write, self._path, tuple(wanted.values()), Clocks.read()
                )
            except (OSError, RuntimeError) as error:
                # A RuntimeError if the host refuses the thread.
                reason = error.strerror if isinstance(error, OSError) else error
                why = f"{self._path}: cannot be written: {reason}"
                if self._failed is None:
                    what = self._file.what
                    text = f"{why}; a new daemon will not restore the current {what}"
                    self._report_warning(what, text)
                self._failed, self._tests_done = _Failure(wanted=wanted, why=why), test
                self._broadcast.wake()
                await self._broadcast.wait(_RETRY_S)
                continue
            self._written, self._failed, self._tests_done = wanted, None, test
            self._broadcast.wake()


def _not_written(otherwise: str, why: str) -> ProblemError:
    return ProblemError(Code.UNAVAILABLE, f"{otherwise}: {why}.")


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


@dataclass(frozen=True, kw_only=True)
class Acknowledged:
    """Wrong results of one GPU that were acknowledged."""

    uuid: str
    errors: int
    findings: int
    #: How many findings of this daemon are acknowledged in all.
    counted: int


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
        #: What the file has, so that no crash takes it back; by UUID. Empty until it is known.
        self.stored: dict[str, VerifiedCounts] = {}
        #: Why what was found earlier is not known, or None; looked up from time to time.
        self.forgotten: str | None = None
        self._is_known = False
        self._written: Mapping[str, StoredWork] = {}
        self._has_failed = False
        self._loaded = False
        #: Held while the file is written: what is new is added to what it has, and only once.
        self._lock = asyncio.Lock()
        #: Set while wrong results are not in the file yet.
        self._wrong = asyncio.Event()

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
        # The counts of a daemon never fall; those of an old view do.
        counts = verified_store.highest(view.verified.counts, work.counted)
        if (counts.errors, counts.findings) != (work.counted.errors, work.counted.findings):
            self._wrong.set()
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
        if self._is_known:
            self.stored.setdefault(view.uuid, VerifiedCounts())

    async def run(self) -> None:
        """Write the file from time to time, and at once after wrong results, forever."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wrong.wait(), _WRITE_EVERY_S)
            self._wrong.clear()
            await self.store()
            await asyncio.sleep(_WRITE_WRONG_EVERY_S)

    async def store(self) -> None:
        """Write the file if something has changed, here or in it; report the first failure."""
        async with self._lock:
            try:
                await self._store()
            except (OSError, RuntimeError) as error:  # the latter if the host refuses the thread
                if not self._has_failed:
                    why = f"{self._path}: cannot be written: {_why(error)}"
                    self._report_warning(f"{why}; verified work is not kept")
                self._has_failed = True

    async def acknowledge(
        self,
        uuids: Sequence[str],
        by: str,
        reason: str,
        outcome: RepairOutcome | None = None,
        faulty: Mapping[str, StoredWork] = MappingProxyType({}),
    ) -> tuple[Acknowledged, ...]:
        """Acknowledge all wrong results of GPUs, and return once that is on disk.

        Args:
            uuids: The GPUs; one without wrong results that count is left out, unless its fault is
                confirmed.
            by: The user.
            reason: Why they no longer count.
            outcome: What became of the GPUs; None if that is not known.
            faulty: The GPUs with known faults, as for ``verified_store.acknowledge``.

        Raises:
            ProblemError: The file cannot be read or written; nothing is acknowledged.
        """
        async with self._lock:
            try:
                await self._store()  # also what was counted since the last minute
                done = await asyncio.to_thread(
                    verified_store.acknowledge, self._path, uuids, by, reason, outcome, faulty
                )
            except (OSError, RuntimeError, ValueError) as error:
                why = f"Nothing was acknowledged: {self._path}: {_why(error)}."
                raise ProblemError(Code.UNAVAILABLE, why) from None
            written = dict(self._written)
            for uuid, one in done.items():
                if uuid not in written:  # a GPU with faults that this daemon does not have
                    continue
                both = (*written[uuid].acknowledged, one)
                self.gpus[uuid] = replace(self.gpus[uuid], acknowledged=both)
                written[uuid] = replace(written[uuid], acknowledged=both)
            self._written = written
        return tuple(
            Acknowledged(
                uuid=uuid,
                errors=one.errors,
                findings=one.findings,
                counted=self._findings_of_this_daemon(written.get(uuid)),
            )
            for uuid, one in done.items()
        )

    async def _store(self) -> None:
        """Write the file if something has changed, here or in it.

        Raises:
            OSError: It cannot be read or written.
            RuntimeError: The host refuses a thread.
        """
        if not self._loaded:
            self._load()
        gpus = dict(self.gpus)
        # In a thread: a disk can be slow.
        self.forgotten = await asyncio.to_thread(verified_store.why_forgotten, self._path)
        if gpus == self._written and not await asyncio.to_thread(self._is_newer):
            return
        saved = await asyncio.to_thread(verified_store.save, self._path, gpus, self._written)
        written = {}
        for uuid, there in saved.items():
            work = gpus.get(uuid)
            if work is None:  # of another daemon alone
                continue
            # What another daemon of the same GPU has added, and what was acknowledged without this.
            more = verified_store.add(self.gpus[uuid].total, there.total, work.total)
            self.gpus[uuid] = replace(self.gpus[uuid], total=more, acknowledged=there.acknowledged)
            written[uuid] = replace(work, total=there.total, acknowledged=there.acknowledged)
        self._written, self._has_failed = written, False
        self._note_stored()

    def _note_stored(self) -> None:
        self.stored.update((uuid, work.total) for uuid, work in self._written.items())
        self._is_known = True

    def _is_newer(self) -> bool:
        """Check whether wrong results were acknowledged in the file by another process."""
        try:
            stored = verified_store.read(self._path)
        except (OSError, ValueError):
            return False  # reported when something is to be written
        return any(
            work.acknowledged != stored[uuid].acknowledged
            for uuid, work in self._written.items()
            if uuid in stored
        )

    def _findings_of_this_daemon(self, work: StoredWork | None) -> int:
        return work.counted.findings if work is not None and work.daemon == self._began else 0

    def _load(self) -> None:
        stored, warning = verified_store.load(self._path)
        self.gpus.update(stored)
        self._written, self._loaded = stored, True
        self.forgotten = verified_store.why_forgotten(self._path)
        if warning is None:
            self._note_stored()
        else:
            self._report_warning(warning)


def _why(error: Exception) -> str:
    """Describe an error of the file in a few words."""
    return str((error.strerror if isinstance(error, OSError) else None) or error)
