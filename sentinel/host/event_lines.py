"""Write events as JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from io import TextIOBase
from typing import Any, TextIO, cast

import structlog

from sentinel.protocol.events import Event
from sentinel.protocol.gpu import Gpu

#: Takes one event after another.
Sink = Callable[[Event], None]


def json_lines(stream: TextIO | TextIOBase, gpus: Mapping[str, Gpu]) -> Sink:
    """Build a sink that writes one JSON object a line: event, time, at, gpu, index and fields.

    ``at`` is monotonic seconds, ``time`` the local time with its UTC offset.
    """
    log = structlog.wrap_logger(
        structlog.WriteLogger(cast("TextIO", stream)),
        processors=[structlog.processors.JSONRenderer(default=str)],
        wrapper_class=structlog.BoundLogger,
        cache_logger_on_first_use=True,
    )

    def write(event: Event) -> None:
        log.info(**event_object(event, gpus))

    return write


def event_object(event: Event, gpus: Mapping[str, Gpu]) -> dict[str, Any]:
    """Build the JSON object of an event: event, time, at, gpu, index and its own fields.

    ``at`` is monotonic seconds, ``time`` the local time with its offset.
    """
    fields: dict[str, Any] = {
        "event": event.name,
        "time": datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "at": event.at,
    }
    if event.gpu is not None:
        fields["gpu"] = event.gpu
        fields["index"] = gpus[event.gpu].index if event.gpu in gpus else None
    return fields | dict(event.fields)
