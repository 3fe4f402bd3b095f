"""A module whose import is the end of the process."""

import os
import signal

os.kill(os.getpid(), signal.SIGKILL)
