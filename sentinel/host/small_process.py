"""Keep a process small: without imports that it does not need, or memory that it has used."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import re
import sys
import types
from collections.abc import Iterator


def without_ctypes_util() -> contextlib.AbstractContextManager[None]:
    """Replace ctypes.util by a stub that finds no library.

    The real module imports shutil, tempfile and all compressors, a megabyte in the probe. NVML's
    binding does not need it. inotify_simple uses it to find the C library, which every process has
    loaded already: that is what ``CDLL(None)`` returns.
    """
    stub = types.ModuleType("ctypes.util")
    stub.find_library = _find_library  # type: ignore[attr-defined]
    return _replaced("ctypes.util", stub)


def without_rich() -> contextlib.AbstractContextManager[None]:
    """Hide rich, which structlog imports for coloured tracebacks.

    It is 5 of the supervisor's 37 MB, and a third of its start.
    """
    return _replaced("rich", None)


@contextlib.contextmanager
def _replaced(name: str, stub: types.ModuleType | None) -> Iterator[None]:
    """Replace a module that is not loaded yet; the import of None raises ImportError."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = stub  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


def _find_library(library: str) -> None:
    """Find nothing."""
    del library


#: The first line of a mapping in /proc/self/smaps: start, end, permissions and file.
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+\s*(/.*)?$")


def give_back() -> None:
    """Return what the start of a process needed and its work does not."""
    trim_heap()
    _drop_unused_pages()


def trim_heap() -> None:
    """Return memory that the C library keeps after it was freed, tens of megabytes, to the host."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def _drop_unused_pages() -> None:
    """Return the pages of libraries that only their import needed to the page cache.

    They are read again from there when they are needed. With torch they are some 200 MB. Only
    mappings without a page of this process's own are dropped, since such a page would be lost.
    """
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    # open() instead of pathlib, whose import takes 0.6 MB of a probe.
    with (
        contextlib.suppress(OSError),
        open("/proc/self/smaps", encoding="ascii", errors="replace") as file,  # noqa: PTH123
    ):
        for start, size in _clean_mappings(file.read()):
            advise(start, size, mmap.MADV_DONTNEED)


def _clean_mappings(smaps: str) -> Iterator[tuple[int, int]]:
    """Yield address and size of the read-only mappings of files that have no modified page.

    A modified page is anonymous, or in the swap space.
    """
    mapping: tuple[int, int] | None = None
    for line in smaps.splitlines():
        head = _MAPPING.match(line)
        if head is not None:
            start, end = int(head[1], 16), int(head[2], 16)
            mapping = (start, end - start) if head[3] in {"r-xp", "r--p"} and head[4] else None
        elif line.startswith("Anonymous:") and line.split()[1] != "0":
            mapping = None
        elif mapping is not None and line.startswith("Swap:"):
            if line.split()[1] == "0":
                yield mapping
            mapping = None
