"""Keeps out of the probe what its libraries import and do not need."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator


@contextlib.contextmanager
def without_ctypes_util() -> Iterator[None]:
    """Let libraries import a stand-in for ctypes.util, which knows no library.

    The real one brings shutil, tempfile and all compressors, a megabyte in the probe. NVML's
    binding uses nothing of it; inotify_simple asks it for the C library, which is in every process
    already: that is what ``CDLL(None)`` gives.
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
