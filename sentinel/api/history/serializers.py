"""Encode rows of the history as responses; runs in the history's thread."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sentinel.api.history.queries import RecordedUse
from sentinel.api.history.recorder import HEALTH_ORDER
from sentinel.api.history.timestamps import iso
from sentinel.protocol.version import SCHEMA_VERSION

#: Fields of an event that are not repeated in ``fields``.
_SEPARATE_FIELDS = {"event", "time", "at", "gpu", "index"}
#: Significant decimals; rates are not rounded.
_DECIMALS = 3
_RATES = {"iterations_per_s", "flops_per_s", "bytes_per_s"}


def encode_readings(uuid: str, step: int, rows: Iterable[dict[str, Any]]) -> bytes:
    """Encode readings as PastReadings."""
    return _encode(gpu=uuid, step_s=step, readings=[_reading(row) for row in rows])


def encode_events(rows: Iterable[tuple[float, str]]) -> bytes:
    """Encode events, given as their time and line, as RecordedEvents."""
    return _encode(events=[_event(at, json.loads(line)) for at, line in rows])


def encode_usage(uses: Sequence[RecordedUse]) -> bytes:
    """Encode uses as Usage."""
    return _encode(
        usage=[
            {
                "gpu": use.uuid,
                "index": use.index,
                "from": iso(use.began),
                "until": iso(use.until),
                "going_on": use.open,
                "who": use.who,
                "ours": use.ours,
                "pid": use.pid,
                "user": use.user,
                "seconds": round(use.until - use.began, _DECIMALS),
            }
            for use in uses
        ]
    )


def _reading(row: dict[str, Any]) -> dict[str, Any]:
    reading = {
        name: round(value, _DECIMALS) if isinstance(value, float) and name not in _RATES else value
        for name, value in row.items()
    }
    health = row["health"]
    reading["at"] = iso(row["at"])
    reading["health"] = None if health is None else HEALTH_ORDER[health].value
    return reading


def _event(at: float, fields: dict[str, Any]) -> dict[str, Any]:
    index = fields.get("index")
    return {
        "at": iso(at),
        "name": fields["event"],
        "gpu": fields.get("gpu"),
        "index": index if isinstance(index, int) else None,
        "fields": {name: value for name, value in fields.items() if name not in _SEPARATE_FIELDS},
    }


def _encode(**fields: Any) -> bytes:
    body = {"schema_version": SCHEMA_VERSION, **fields}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
