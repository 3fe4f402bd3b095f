"""The position of a process's main thread, written to a file that survives a SIGKILL."""

from __future__ import annotations

import itertools
import mmap
import struct
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

#: One record: the time on the monotonic clock and the position, in a ring of 24 s.
_TEXT_BYTES = 152
_RECORD = struct.Struct(f"d{_TEXT_BYTES}s")
_RECORDS = 12_000
_EVERY_S = 0.002
#: How many frames of sentinel a position has.
_FRAMES = 4


def create(path: Path) -> None:
    """Create the file of a process that will trace itself."""
    path.write_bytes(bytes(_RECORD.size * _RECORDS))


def begin(path: Path) -> None:
    """Write the position of the main thread to an existing file every 2 ms, in a thread."""
    main = threading.main_thread().ident or 0
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)

    def write() -> None:
        for number in itertools.cycle(range(_RECORDS)):
            frame = sys._current_frames().get(main)  # noqa: SLF001 - documented
            text = position(frame).encode()[:_TEXT_BYTES]
            _RECORD.pack_into(memory, number * _RECORD.size, time.monotonic(), text)
            time.sleep(_EVERY_S)

    threading.Thread(target=write, name="trace", daemon=True).start()


def position(frame: FrameType | None) -> str:
    """Name the innermost function, and the innermost ones of sentinel with their lines."""
    names = [frame.f_code.co_name] if frame is not None else []
    while frame is not None and len(names) <= _FRAMES:
        path = Path(frame.f_code.co_filename)
        if "sentinel" in path.parts:
            names.append(f"{path.stem}.{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(names)


def read(path: Path) -> list[tuple[float, str]]:
    """Read the times and positions of a file, in their order."""
    records = _RECORD.iter_unpack(path.read_bytes())
    return sorted((at, text.rstrip(b"\0").decode(errors="replace")) for at, text in records if at)


def profile(positions: list[tuple[float, str]], since: float) -> dict[str, float]:
    """Sum the seconds of each position since a moment, the longest first."""
    spent: Counter[str] = Counter()
    for (at, text), (until, _) in itertools.pairwise(positions):
        if at >= since:
            spent[text] += round((until - at) * 1e6)
    return {text: microseconds / 1e6 for text, microseconds in spent.most_common(60)}
