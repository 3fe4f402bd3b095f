"""The table of everything that can be set: its names, what is allowed, and what it does.

Flags, variables, keys of the file, the help text and the checks all follow from a row.
"""

from __future__ import annotations

from sentinel.settings.condition import CONDITION
from sentinel.settings.holding import HOLDING
from sentinel.settings.limits import LIMITS
from sentinel.settings.running import RUNNING
from sentinel.settings.setting import Setting
from sentinel.settings.yielding import YIELDING

__all__ = ["SETTINGS", "Setting"]

SETTINGS: tuple[Setting, ...] = (*HOLDING, *YIELDING, *CONDITION, *LIMITS, *RUNNING)
