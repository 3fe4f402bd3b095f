"""A module whose import holds the interpreter's lock for longer than a lease of one second."""

import ctypes

from bad_workloads import well_behaved as well_behaved  # type: ignore[import-not-found]

ctypes.PyDLL(None).usleep(1_600_000)
