"""A module whose import holds the interpreter's lock for longer than a lease of one second."""

import ctypes

ctypes.PyDLL(None).usleep(1_600_000)
