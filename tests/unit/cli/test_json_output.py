"""Objects are printed with the names that the API has."""

from __future__ import annotations

from datetime import UTC, datetime

from sentinel.cli.display.output import to_json
from sentinel.client.requester import decode
from sentinel.protocol.history_types import PastUse, Usage

FROM_API = {
    "gpu": "GPU-a",
    "index": 0,
    "from": "2026-11-23T15:27:39+00:00",
    "until": "2026-11-23T15:35:22+00:00",
    "going_on": False,
    "who": "sentinel",
    "ours": True,
    "pid": 6166,
    "user": None,
    "seconds": 463.0,
}


def test_a_use_is_printed_as_the_api_returned_it() -> None:
    (use,) = decode(Usage, {"schema_version": 1, "usage": [FROM_API]}).usage
    assert isinstance(use, PastUse)
    printed = to_json(use)
    assert printed.keys() == FROM_API.keys()
    assert datetime.fromisoformat(printed["from"]) == datetime(2026, 11, 23, 15, 27, 39, tzinfo=UTC)
