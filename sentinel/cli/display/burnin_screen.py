"""Show a burn-in on a terminal: its events, and below them a table of how far each GPU is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

from sentinel.cli.display.live_table import LiveTable
from sentinel.units import format_duration

HEADER = ("GPU", "PHASE", "DONE", "TO DO", "RESULTS", "WRONG", "TEMP", "POWER", "STATE")
#: The right-aligned columns.
RIGHT = (2, 3, 4, 5, 6, 7)
_STATE = 8

#: The events that only the table shows, once a second.
_PERIODIC = {"gpu.status", "burnin.progress"}


class Screen(LiveTable):
    """Lines of events on a stream; on a terminal also the table.

    Args:
        stream: Where to print.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream, HEADER, RIGHT)
        self._rows: dict[int, tuple[str, ...]] = {}

    def show(self, rows: Mapping[int, tuple[str, ...]]) -> None:
        """Replace the rows of these GPUs, by their index."""
        self._rows.update(rows)
        self.draw([self._rows[index] for index in sorted(self._rows)])

    def tabulate(self, name: str, index: int | None, fields: Mapping[str, Any]) -> bool:
        """Enter an event into the table; return whether it needs no line, as there is a table.

        Args:
            name: The name of the event.
            index: The index of its GPU, or None.
            fields: Its fields.
        """
        if not self.is_live:
            return False
        if name == "burnin.progress" and index is not None:
            self.show({index: progress_row(index, fields, fields)})
        elif name == "burnin.ended" and index in self._rows:
            self.show({index: (*self._rows[index][:_STATE], str(fields["reason"] or "done"))})
        return name in _PERIODIC


def progress_row(
    index: int, progress: Mapping[str, Any], sensors: Mapping[str, Any]
) -> tuple[str, ...]:
    """Build the row of a GPU.

    Args:
        index: The index of the GPU.
        progress: The fields of a :class:`~sentinel.protocol.views.BurninFields`, or of an event.
        sensors: ``temperature_c`` and ``power_w``, None if unknown.
    """
    done = ""
    if progress["quota_passes"]:
        done = f"{progress['passes']} of {progress['quota_passes']}"
    if progress["quota_s"]:
        spent, quota = round(progress["done_s"]), round(progress["quota_s"])
        done = f"{format_duration(spent)} of {format_duration(quota)}"
    over = "done" if progress.get("over") else progress["waiting"] or "counts"
    heat, power = sensors["temperature_c"], sensors["power_w"]
    return (
        str(index),
        f"{progress['number']} of {progress['phases']} {progress['phase']}",
        done,
        format_duration(round(progress["left_s"])),
        f"{progress['checks']:,}",
        f"{progress['errors']:,}",
        "" if heat is None else f"{heat} C",
        "" if power is None else f"{power:.0f} W",
        progress.get("ended") or over,
    )
