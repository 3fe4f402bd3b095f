"""Keeps out of the probe what its binding imports and does not use."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator

__all__ = ["without_ctypes_util"]


@contextlib.contextmanager
def without_ctypes_util() -> Iterator[None]:
    """Let the binding import a stand-in for ctypes.util, of which it uses nothing.

    The real one brings shutil, tempfile and all compressors: a megabyte in the probe.
    """
    name = "ctypes.util"
    if name in sys.modules:
        yield
        return
    stand_in = types.ModuleType(name)

    def find_library(library: str) -> str | None:
        from ctypes.util import find_library as real

        return real(library)

    stand_in.find_library = find_library  # type: ignore[attr-defined]
    sys.modules[name] = stand_in
    try:
        yield
    finally:
        del sys.modules[name]
