"""A wait is reported when the place changes, and again from time to time."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from sentinel.client.verbs import ReservationVerbs
from sentinel.errors import ConfigError
from sentinel.protocol.api_types import ReservationInfo
from tests.harness.timing import TIMEOUT_S


class _Queue(ReservationVerbs):
    """Has each place for one reading, the last one until the reservation is granted."""

    def __init__(self, *places: int) -> None:
        self._places = list(places)
        self._id = ""
        self.granted = threading.Event()

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, wait: float = 0.0
    ) -> dict[str, Any]:
        if method == "PUT":
            assert body is not None
            assert (body["wait_s"], wait) == (None, math.inf)
            self._id = path.rpartition("/")[2]
            assert self.granted.wait(TIMEOUT_S)
            return self._request(0)
        place = self._places.pop(0) if len(self._places) > 1 else self._places[0]
        kind, other = ("queue", "reservations") if place else ("reservations", "queue")
        return {kind: [self._request(place)], other: []}

    def _request(self, place: int) -> dict[str, Any]:
        return {"id": self._id, "place": place, "reason": "", "since": "2026-11-28T10:00:00Z"}


@pytest.mark.parametrize(
    ("places", "repeat_s", "reported"),
    [
        ((2, 2, 2, 1, 0), 60.0, [2, 1, 0]),
        ((1, 1, 1), 0.0, [1, 1, 1]),
    ],
)
def test_a_wait_is_reported_when_its_place_changes_and_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch, places: tuple[int, ...], repeat_s: float, reported: list[int]
) -> None:
    monkeypatch.setattr("sentinel.client.verbs._WATCH_EVERY_S", 0.01)
    monkeypatch.setattr("sentinel.client.verbs._MIN_REPEAT_S", repeat_s)
    monkeypatch.setattr("sentinel.client.verbs._MAX_REPEAT_S", repeat_s)
    queue, seen = _Queue(*places), list[int]()

    def on_wait(one: ReservationInfo) -> None:
        seen.append(one.place)
        if len(seen) == len(reported):
            queue.granted.set()

    queue.reserve(1, seconds=None, wait=math.inf, on_wait=on_wait)
    assert seen[: len(reported)] == reported


@pytest.mark.parametrize("wrong", [5, "print", [print]])
def test_what_is_to_be_called_in_a_wait_is_a_function(wrong: Any) -> None:
    for wait in (0, math.inf):
        with pytest.raises(ConfigError, match=r"on_wait: .* is not a function"):
            _Queue(0).reserve(1, seconds=None, wait=wait, on_wait=wrong)
