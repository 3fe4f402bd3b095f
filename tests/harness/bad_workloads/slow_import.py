"""A module that holds the interpreter lock during its import, for 1.6 or SLOW_IMPORT_S seconds."""

import ctypes
import os

from . import well_behaved

__all__ = ["well_behaved"]

ctypes.PyDLL(None).usleep(int(1e6 * float(os.environ.get("SLOW_IMPORT_S", "1.6"))))
