"""Events and their types: word, kind and sentence of each, of events.toml.

A sentence is a template:

- ``{field}`` inserts a field, ``{field:format}`` formats it first: for the terminal in
  cli/display/log_lines.py, for the web page in web/event_text.js.
- ``[a|b]`` inserts the first alternative with all of its fields set; 0 and false count as not set.
- ``{field?}`` inserts nothing. In an alternative with such fields, only they have to be set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from sentinel.protocol.shipped_tables import shipped_table

#: What only the log gets, at the debug level: at the rate of the checks, it would crowd all else
#: out of the history and the last lines of the status.
DEBUG_EVENTS = frozenset({"gpu.checked"})

#: What is repeated as often as `--status-every` says, and has the same as a table of the GPUs.
PERIODIC_EVENTS = frozenset({"gpu.status", "burnin.progress"})


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


@dataclass(frozen=True, kw_only=True)
class EventType:
    """One type of event."""

    name: str
    #: The word before the sentence.
    word: str
    kind: Kind
    #: The template of the sentence.
    sentence: str
    #: Whether it is about the host. All others are about a GPU; those of the probe sometimes.
    host: bool


def _read() -> Mapping[str, EventType]:
    """Read the catalogue that comes with Sentinel."""
    events = {
        name: EventType(
            name=name,
            word=declared["word"],
            kind=Kind(declared["kind"]),
            sentence=" ".join(declared["sentence"].split()),
            host=declared.get("host", False),
        )
        for name, declared in shipped_table("sentinel.protocol", "events.toml").items()
        if name != "shared"
    }
    return MappingProxyType(events)


#: All types of events by name, in the order of the documents.
EVENTS = _read()

#: The events about the host.
HOST_EVENTS = frozenset(event.name for event in EVENTS.values() if event.host)
