"""A module that holds the interpreter lock during its import for longer than a one-second lease."""

import ctypes

from . import well_behaved

__all__ = ["well_behaved"]

ctypes.PyDLL(None).usleep(1_600_000)
