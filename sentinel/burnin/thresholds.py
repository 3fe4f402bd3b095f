"""The limits of the checks: defaults with their origins, and values of a file that replace them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """One limit of a check."""

    value: float
    #: Where it is from, such as the path of a file; empty for the default.
    origin: str = ""


@dataclass(frozen=True)
class Thresholds:
    """The limits of all checks, by the id of the check and the name of the limit.

    ``thresholds.number("pcie.replay_rate", "fail")`` is the limit in force.
    """

    limits: Mapping[str, Mapping[str, Threshold]] = field(default_factory=dict)

    def number(self, check: str, name: str) -> float:
        """Look up one limit."""
        return self.limits[check][name].value

    def source_of(self, check: str, default: str) -> str:
        """Name the origin of a check's limits: files, if any of them was overridden."""
        origins = {one.origin for one in self.limits.get(check, {}).values() if one.origin}
        return ", ".join(sorted(origins)) or default

    def overridden(self) -> dict[str, float]:
        """List the limits that differ from the defaults' origin, by ``check.limit``."""
        return {
            f"{check}.{name}": one.value
            for check, names in self.limits.items()
            for name, one in names.items()
            if one.origin
        }
