"""The formats of a fleet's report by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from sentinel.fleet.checks.verdict import FleetVerdict
from sentinel.fleet.reports.html_page import html_page
from sentinel.fleet.reports.junit import junit_xml
from sentinel.fleet.reports.report import fleet_object, gpu_lines
from sentinel.fleet.reports.text import text_lines


def _line(text: str) -> str:
    """Keep a line one line: the report of a node must add none, and not control the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


#: What builds each format; without a newline at the end.
FORMATS: Mapping[str, Callable[[FleetVerdict], str]] = {
    "text": lambda fleet: "\n".join(map(_line, text_lines(fleet))),
    "html": html_page,
    "junit": junit_xml,
    "json": lambda fleet: json.dumps(fleet_object(fleet), indent=1),
    "jsonl": lambda fleet: "\n".join(json.dumps(gpu_line) for gpu_line in gpu_lines(fleet)),
}
