"""Libraries that are preloaded into real processes, each with a file shared with the test."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tests.harness.fake_nvml import build
from tests.harness.gpu_environment import TESTS

#: How long a slow call takes, in seconds: longer than any write is waited for.
SLOW_S = 8


class _Preloaded:
    """A library and its file.

    Args:
        folder: The folder of the file.
        shared: A folder for the library, which is built once.
    """

    #: The names of the source and of the variable with the path of the file.
    source: str
    flags: tuple[str, ...] = ("-ldl",)

    def __init__(self, folder: Path, shared: Path) -> None:
        text = (TESTS / f"{self.source}.c").read_text()
        name = f"lib{self.source}.so"
        library = build(shared, *self.flags, source_text=text, name=name) / name
        self._file = folder / f"{self.source}.file"
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            self.source.upper(): str(self._file),
        }


class FailingDisk(_Preloaded):
    """Makes writes to chosen files fail or take long.

    The file has lines ``CALL PART EFFECT``: the call (write, fsync or rename), a part of the path,
    and the number of the error, or ``slow``. Each call reads the file, so it can change while the
    process runs.
    """

    source = "failing_disk"
    flags = (f"-DSLOW_S={SLOW_S}", "-ldl")

    def __init__(self, folder: Path, shared: Path) -> None:
        super().__init__(folder, shared)
        self.set()

    def set(self, *lines: str) -> None:
        """Set what fails from now on."""
        draft = self._file.with_suffix(".draft")
        draft.write_text("\n".join([*lines, ""]))
        draft.replace(self._file)


class JumpingClock(_Preloaded):
    """Moves the wall clock of processes while they run, by the seconds in the file."""

    source = "jumping_clock"

    def __init__(self, folder: Path, shared: Path) -> None:
        super().__init__(folder, shared)
        self._file.write_bytes(struct.pack("q", 0))

    def jump(self, to: datetime) -> None:
        """Set the wall clock; it goes on from there."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("q", int(to.timestamp() - time.time())))


@dataclass(frozen=True)
class SentSignal:
    """One signal."""

    sender: int
    receiver: int
    number: int
    #: The receiver's ancestors, from its parent on, then the leader of its session with its own;
    #: empty if it was gone already.
    ancestors: tuple[int, ...]


class SignalTrace(_Preloaded):
    """Records every signal that a process sends, and to which process."""

    source = "signal_trace"

    def sent(self) -> list[SentSignal]:
        """Read all signals so far."""
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        rows = [[int(word) for word in line.split()] for line in lines]
        return [SentSignal(row[0], row[1], row[2], tuple(row[3:])) for row in rows]
