"""Colour the verdicts at the beginning of the lines of a burn-in's report."""

from __future__ import annotations

import re
import sys

from sentinel.cli.display.terminal import styled, wants_colour

_STYLES = {
    "PASS": "green",
    "WARN": "yellow",
    "FAIL": "bold red",
    "INCOMPLETE": "magenta",
    "MISSING": "magenta",
}
_VERDICT = re.compile(rf"^({'|'.join(_STYLES)})\b", re.MULTILINE)


def paint_verdicts(text: str) -> str:
    """Colour the verdicts of a report, if standard output has colours."""
    if not wants_colour(sys.stdout):
        return text
    return _VERDICT.sub(lambda match: styled(match[1], _STYLES[match[1]]), text)
