"""A module whose import holds the interpreter's lock for longer than a lease of one second."""

import ctypes

from misbehaving import well_behaved

__all__ = ["well_behaved"]

ctypes.PyDLL(None).usleep(1_600_000)
