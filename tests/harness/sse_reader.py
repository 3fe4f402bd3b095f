"""A parser of server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

from tests.harness.api_harness import ApiServer, UnixConnection


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


@contextmanager
def following(
    api: ApiServer, path: str = "/v1/events", headers: Mapping[str, str] = {}
) -> Iterator[Iterator[Event]]:
    """Follow a stream during the block, from its first line on."""
    connection = UnixConnection(api.path)
    connection.request("GET", path, headers=dict(headers))
    response = connection.getresponse()
    assert response.status == 200
    assert response.getheader("content-type", "").startswith("text/event-stream")
    if path.startswith("/v1/events"):
        response.readline()  # the stream has started
    yield events(response)
    connection.close()
