"""The table of everything that can be set: its names, what is allowed, and what it does.

Flags, variables, keys of the file, the help text and the checks all follow from a row.
"""

from __future__ import annotations

from sentinel.config.settings.daemon import RUNNING
from sentinel.config.settings.limits import LIMITS
from sentinel.config.settings.setting import Setting
from sentinel.config.settings.throttling import CONDITION
from sentinel.config.settings.workload import HOLDING
from sentinel.config.settings.yielding import YIELDING

SETTINGS: tuple[Setting, ...] = (*HOLDING, *YIELDING, *CONDITION, *LIMITS, *RUNNING)
