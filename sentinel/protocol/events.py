"""Events and their types: word, kind, sentence, description and fields of each, of events.toml.

A sentence is a template:

- ``{field}`` inserts a field, ``{field:format}`` formats it first: for the terminal in
  cli/display/log_lines.py, for the web page in web/event_text.js.
- ``[a|b]`` inserts the first alternative with all of its fields set; 0 and false count as not set.
- ``{field?}`` inserts nothing. In an alternative with such fields, only they have to be set.

Fields are text: ``name (type): meaning``, a line each, with further lines of one indented, and
without a meaning that the name already has. docs/reference/events.md explains the types.
"""

from __future__ import annotations

import pkgutil
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

#: What only the log gets, at the debug level: at the rate of the checks, it would crowd all else
#: out of the history and the last lines of the status.
DEBUG_EVENTS = frozenset({"gpu.checked"})

#: What is repeated as often as `--status-every` says, and has the same as a table of the GPUs.
PERIODIC_EVENTS = frozenset({"gpu.status", "burnin.progress"})

#: A field, up to the next line that begins with a name and a type.
_FIELD = re.compile(r"^(\w+) \((.+?)\)(?::\s+(.+?))?\s*(?=^\w+ \(|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened, under a dotted name that is public API."""

    name: str
    at: float
    #: The UUID of the GPU; None for an event about the node.
    gpu: str | None = None
    #: JSON values only.
    fields: Mapping[str, object] = field(default_factory=dict)


class Kind(StrEnum):
    """What an event is about."""

    USE = "use"
    YIELD = "yield"
    HANDOVER = "handover"
    FINDING = "finding"
    COMMAND = "command"
    #: Not in the timeline of the web page.
    DETAIL = "detail"


class Field(NamedTuple):
    """One field of an event."""

    name: str
    #: The type and the unit, as text.
    type: str
    #: What the name and the type do not say; may be empty.
    text: str


@dataclass(frozen=True, kw_only=True)
class EventType:
    """One type of event."""

    name: str
    #: The word before the sentence.
    word: str
    kind: Kind
    #: The template of the sentence.
    sentence: str
    #: When the event is published.
    description: str
    #: Its fields as text.
    field_text: str
    #: Whether it is about the host. All others are about a GPU; those of the probe sometimes.
    host: bool

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields, in the order of the documents."""
        found = _FIELD.finditer(self.field_text)
        return tuple(Field(*map(_joined, match.groups(""))) for match in found)


def _read() -> Mapping[str, EventType]:
    """Read the catalogue that comes with Sentinel."""
    text = pkgutil.get_data("sentinel.protocol", "events.toml") or b""
    table = tomllib.loads(text.decode())
    shared: Mapping[str, str] = table.pop("shared")
    events = {name: _event(name, declared, shared) for name, declared in table.items()}
    return MappingProxyType(events)


def _event(name: str, declared: Mapping[str, Any], shared: Mapping[str, str]) -> EventType:
    """Build a type of event from its table, with the fields that it shares with others."""
    fields = declared.get("fields", "")
    for key, text in shared.items():
        fields = fields.replace(f"{{{key}}}", text.strip())
    return EventType(
        name=name,
        word=declared["word"],
        kind=Kind(declared["kind"]),
        sentence=_joined(declared["sentence"]),
        description=_joined(declared["description"]),
        field_text=fields,
        host=declared.get("host", False),
    )


def _joined(text: str) -> str:
    """Join the lines of a text."""
    return " ".join(text.split())


#: All types of events by name, in the order of the documents.
EVENTS = _read()

#: The events about the host.
HOST_EVENTS = frozenset(event.name for event in EVENTS.values() if event.host)
