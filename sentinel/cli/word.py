"""The type of an option or argument that takes one of a few words."""

from __future__ import annotations

from typing import Any

import click


class Word(click.Choice[str]):
    """One of these words; the error for another one names them, and the nearest."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Build the message for a word that is not allowed."""
        del ctx
        from sentinel.config.sources import nearest  # slow to import

        near = nearest(str(value), self.choices)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        return f"{value!r} is not one of {', '.join(self.choices)}{hint}"
