"""Keep unneeded imports of libraries out of the processes that must stay small."""

from __future__ import annotations

import contextlib
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
