"""Events as entries of the system journal: a sentence, a priority and one field for each value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sentinel.cli.display.log_lines import describe, is_hidden
from sentinel.cli.display.output import printable
from sentinel.core.step import Event
from sentinel.host.systemd import Journal, field_name
from sentinel.protocol.event_type import Kind
from sentinel.protocol.events import EVENTS
from sentinel.protocol.gpu import Gpu
from sentinel.supervisor.event_log import Sink, event_object

#: The field with the whole event as JSON, as in the file of a log; `sentinel logs` reads it.
JSON_FIELD = "SENTINEL_JSON"
#: The first part of the names of all other fields of an event.
_PREFIX = "SENTINEL_"

#: Priorities of syslog(3).
_ERROR, _WARNING, _NOTICE, _INFO, _DEBUG = 3, 4, 5, 6, 7
#: The events that ask for an operator.
_ERRORS = {
    "driver.unavailable",
    "gpu.overheat",
    "stressor.fatal",
    "stressor.finding",
    "stressor.unkillable",
}
_PRIORITIES = {Kind.FINDING: _WARNING, Kind.COMMAND: _NOTICE, Kind.DETAIL: _INFO}


def journal_sink(journal: Journal, gpus: Mapping[str, Gpu]) -> Sink:
    """Build a sink that sends each event to the journal."""

    def write(event: Event) -> None:
        journal.send(entry(event_object(event, gpus)))

    return write


def entry(event: Mapping[str, Any]) -> dict[str, str]:
    """Build the fields of an entry.

    Args:
        event: The JSON object of the event.
    """
    name = event["event"]
    own = {key: value for key, value in event.items() if key not in {"event", "time", "at", "gpu"}}
    index = own.pop("index", None)
    word, text = describe(name, own)
    place = "" if "gpu" not in event else f"GPU {'?' if index is None else index}: "
    given = {"event": name, "gpu": event.get("gpu"), "index": index, **own}
    return {
        "MESSAGE": printable(f"{place}{word} {text}".rstrip()),
        "PRIORITY": str(priority(name, own)),
        "SYSLOG_IDENTIFIER": "sentinel",
        **{
            _PREFIX + field_name(key): _text(value)
            for key, value in given.items()
            if value is not None
        },
        JSON_FIELD: json.dumps(event, default=str),
    }


def priority(name: str, fields: Mapping[str, Any]) -> int:
    """Return the syslog priority of an event: 3, error, to 7, debug."""
    if is_hidden(name, fields):
        return _DEBUG
    if name in _ERRORS:
        return _ERROR
    return _PRIORITIES.get(EVENTS[name].kind, _INFO) if name in EVENTS else _INFO


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
