"""A module whose import never returns."""

import time

from tests.harness.bad_workloads import FOREVER

time.sleep(FOREVER)
