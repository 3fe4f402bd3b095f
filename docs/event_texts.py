"""Read what the documents say of events from the catalogue: when each is published, and its fields.

Fields are text: ``name (type): meaning``, a line each, with further lines of one indented, and
without a meaning that the name already has. docs/reference/events.md explains the types.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_CATALOGUE = Path(__file__).resolve().parent.parent / "sentinel" / "protocol" / "events.toml"
#: A field, up to the next line that begins with a name and a type.
_FIELD = re.compile(r"^(\w+) \((.+?)\)(?::\s+(.+?))?\s*(?=^\w+ \(|\Z)", re.MULTILINE | re.DOTALL)


class Field(NamedTuple):
    """One field of an event."""

    name: str
    #: The type and the unit, as text.
    type: str
    #: What the name and the type do not say; may be empty.
    text: str


class EventText(NamedTuple):
    """What the documents say of an event."""

    #: When the event is published.
    description: str
    fields: tuple[Field, ...]


def event_texts() -> Mapping[str, EventText]:
    """Read the texts of all events by name, in the order of the documents."""
    table = tomllib.loads(_CATALOGUE.read_text())
    shared = table.pop("shared")
    return {
        name: EventText(_joined(declared["description"]), _fields(declared, shared))
        for name, declared in table.items()
    }


def _fields(declared: Mapping[str, str], shared: Mapping[str, str]) -> tuple[Field, ...]:
    """Read the fields of an event, with those that it shares with others."""
    text = declared.get("fields", "")
    for key, fields in shared.items():
        text = text.replace(f"{{{key}}}", fields.strip())
    return tuple(Field(*map(_joined, match.groups(""))) for match in _FIELD.finditer(text))


def _joined(text: str) -> str:
    """Join the lines of a text."""
    return " ".join(text.split())
