"""A module whose import never returns."""

import time

from misbehaving import FOREVER

time.sleep(FOREVER)
