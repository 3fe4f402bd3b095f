"""Makes what clients get of what a history has; in its thread, since there may be much of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sentinel.api.history.queries import Used
from sentinel.api.history.recorder import CONDITIONS
from sentinel.api.history.timestamps import iso

#: Fields of a line that stand beside the others.
_BESIDE = {"event", "time", "at", "gpu", "index"}
#: Digits after the point that say something; of rates, all are kept.
_DIGITS = 3
_RATES = {"iterations_per_s", "flops_per_s", "bytes_per_s"}


def as_readings(uuid: str, step: int, rows: Iterable[dict[str, Any]]) -> bytes:
    """Return the body of an answer with these readings."""
    return _body(gpu=uuid, step_s=step, readings=[_reading(row) for row in rows])


def as_events(rows: Iterable[tuple[float, str]]) -> bytes:
    """Return the body of an answer with the events of these lines."""
    return _body(events=[_event(at, json.loads(line)) for at, line in rows])


def as_usage(uses: Sequence[Used]) -> bytes:
    """Return the body of an answer with these uses."""
    return _body(
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
                "seconds": round(use.until - use.began, _DIGITS),
            }
            for use in uses
        ]
    )


def _reading(row: dict[str, Any]) -> dict[str, Any]:
    shown = {
        name: round(value, _DIGITS) if isinstance(value, float) and name not in _RATES else value
        for name, value in row.items()
    }
    worst = row["health"]
    shown["at"] = iso(row["at"])
    shown["health"] = None if worst is None else CONDITIONS[worst].value
    return shown


def _event(at: float, fields: dict[str, Any]) -> dict[str, Any]:
    index = fields.get("index")
    return {
        "at": iso(at),
        "name": fields["event"],
        "gpu": fields.get("gpu"),
        "index": index if isinstance(index, int) else None,
        "fields": {name: value for name, value in fields.items() if name not in _BESIDE},
    }


def _body(**fields: Any) -> bytes:
    body = {"schema_version": 1, **fields}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
