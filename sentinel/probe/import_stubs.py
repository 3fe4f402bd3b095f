"""Keep unneeded imports of libraries out of the probe."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator


@contextlib.contextmanager
def without_ctypes_util() -> Iterator[None]:
    """Replace ctypes.util by a stub that finds no library.

    The real module imports shutil, tempfile and all compressors, a megabyte in the probe. NVML's
    binding does not need it. inotify_simple uses it to find the C library, which every process has
    loaded already: that is what ``CDLL(None)`` returns.
    """
    name = "ctypes.util"
    if name in sys.modules:
        yield
        return
    stand_in = types.ModuleType(name)
    stand_in.find_library = _find_library  # type: ignore[attr-defined]
    sys.modules[name] = stand_in
    try:
        yield
    finally:
        del sys.modules[name]


def _find_library(library: str) -> None:
    """Find nothing."""
    del library
