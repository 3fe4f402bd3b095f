"""A parser of server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    id: str | None
    name: str
    data: Mapping[str, Any]


def events(response: HTTPResponse) -> Iterator[Event]:
    """Parse the events of a response."""
    fields: dict[str, str] = {}
    while line := response.readline().decode():
        name, _, value = line.rstrip("\n").partition(": ")
        if name.startswith(":"):
            continue
        if name:
            fields[name] = value
        elif fields:
            yield Event(fields.get("id"), fields["event"], json.loads(fields["data"]))
            fields = {}
