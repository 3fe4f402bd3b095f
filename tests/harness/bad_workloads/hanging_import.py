"""A module whose import never returns."""

import time

from . import FOREVER

time.sleep(FOREVER)
