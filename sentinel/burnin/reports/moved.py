"""The counters that differ between two readings of a GPU. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.burnin.checks.measures import format_value

#: When a reading was made, and the errors of its calls, are no counters.
_NOT_COMPARED = {"at", "failed"}

#: Readings of the moment, and counters that grow with time itself.
_OF_THE_MOMENT = {
    "reasons",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_c",
    "memory_temperature_c",
    "temperature_margin_c",
    "pcie_generation",
    "pcie_width",
    "energy_j",
}
_GROWING = ("_throttled_s", ".speed_mbps", ".effective_ber")

#: Counters have this ending; everything else is a mode, a limit or a reading of the moment.
_COUNTER = "_total"


@dataclass(frozen=True, kw_only=True)
class Moved:
    """One value that differs."""

    name: str
    before: Any
    after: Any

    @property
    def growth(self) -> str:
        """The difference of two numbers, with its sign."""
        numbers = (int, float)
        for value in (self.before, self.after):
            if isinstance(value, bool) or not isinstance(value, numbers):
                return ""
        difference = self.after - self.before
        return f"{'+' if difference > 0 else ''}{format_value(difference)}"

    @property
    def counts(self) -> bool:
        """Whether it is a counter."""
        return self.name.endswith(_COUNTER)

    @property
    def lasting(self) -> bool:
        """Whether it is a counter or a mode, and not a reading that differs at any two times."""
        return self.name not in _OF_THE_MOMENT and not self.name.endswith(_GROWING)


def moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Moved]:
    """List the values that differ: counters first."""
    old, new = dict(_flat(before)), dict(_flat(after))
    found = [
        Moved(name=name, before=old.get(name), after=new.get(name))
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    return sorted(found, key=lambda one: not one.counts)


def _flat(counters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and values; those of the NVLinks with the number of the link."""
    for name, value in counters.items():
        if name in _NOT_COMPARED:
            continue
        if name == "nvlinks":
            for link in value or ():
                for key, one in link.items():
                    if key != "link":
                        yield f"nvlink{link['link']}.{key}", one
        else:
            yield name, tuple(value) if isinstance(value, list) else value
