"""Which panels of ``sentinel top`` are shown below the GPUs, and how many rows each has."""

from __future__ import annotations

from collections.abc import Sequence

#: The panels, in the order in which Tab goes through them.
PANELS = ("processes", "details", "events")

#: From this width on, all panels are shown, the details beside the others.
WIDE = 110
#: How many rows two panels need, and three, one below the other.
_ROWS_OF_TWO, _ROWS_OF_THREE = 14, 24
#: The least rows of a panel with its title, if it has as many lines.
_LEAST_ROWS = 6


def shown_panels(width: int, rows: int, first: str) -> tuple[str, ...]:
    """Choose the panels: as many as there is room for, from ``first`` on.

    Args:
        width: The columns of the screen.
        rows: The rows below the GPUs.
        first: The panel that Tab has chosen.
    """
    if width >= WIDE:
        return PANELS
    count = 3 if rows >= _ROWS_OF_THREE else 2 if rows >= _ROWS_OF_TWO else 1
    start = PANELS.index(first)
    return tuple(PANELS[(start + number) % len(PANELS)] for number in range(count))


def share_rows(needs: Sequence[int], rows: int) -> list[int]:
    """Share rows among panels one below the other: what each needs, and the rest to the last.

    Args:
        needs: The rows that each needs, with its title, from top to bottom; none is displayed any
            more once the screen closes.
        rows: The rows that there are.
    """
    if not needs:
        return []
    given: list[int] = []
    left = rows
    for number, need in enumerate(needs[:-1]):
        kept = sum(min(other, _LEAST_ROWS) for other in needs[number + 1 :])
        given.append(max(1, min(need, left - kept)))
        left -= given[-1]
    return [*given, max(1, left)]
