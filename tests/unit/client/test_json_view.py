"""A view of a JSON object has the attributes of the response types."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sentinel.client.requester import JsonView


def test_objects_lists_and_times_are_attributes_and_missing_fields_are_none() -> None:
    view = JsonView(
        {
            "gpus": [{"index": 1, "handover": {"exit": 0.2}}],
            "daemon": {"since": "2026-11-21T20:00:00+00:00"},
            "indices": [0, 1],
        }
    )
    assert view.gpus[0].handover.exit == 0.2
    assert view.daemon.since == datetime(2026, 11, 21, 20, tzinfo=UTC)
    assert view.indices == (0, 1)
    assert view.burnin is None
    with pytest.raises(AttributeError):
        view.gpus[0].index.real_name  # noqa: B018 - a number has no fields
