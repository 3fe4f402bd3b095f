"""A wait is reported: for what, for how long, and not again and again outside a terminal."""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sentinel.cli.daemon.reserve import place_reporter
from sentinel.client import Client, ReservationInfo
from sentinel.errors import NotRunningError
from tests.harness.narrowing import not_none


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _request(place: int, minutes: float, **more: Any) -> ReservationInfo:
    since = datetime.now(UTC) - timedelta(minutes=minutes)
    return ReservationInfo(
        id="1a2b3c4d", count=2, indices=(0, 1, 2), place=place, since=since, reason="", **more
    )


def _gpu(index: int, occupancy: str) -> SimpleNamespace:
    return SimpleNamespace(
        index=index,
        occupancy=occupancy,
        reason="in use by foreign processes",
        processes=(),
        reservation=None,
        stressor="STOPPED",
        workload=None,
        session=None,
    )


class _Daemon:
    """Answers with GPUs of which one is busy, or not at all."""

    def __init__(self, *, answers: bool = True) -> None:
        self._answers = answers

    def status(self) -> SimpleNamespace:
        if not self._answers:
            raise NotRunningError("it has ended")
        gpus = (_gpu(1, "BUSY"), _gpu(2, "IDLE"), _gpu(3, "BUSY"))
        return SimpleNamespace(gpus=gpus, reservations=(), queue=())


@pytest.mark.parametrize("terminal", [True, False])
def test_a_wait_is_repeated_with_its_time_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    stream = _Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    report = not_none(place_reporter(cast("Client", _Daemon()), quiet=False))
    for place, minutes in ((2, 0.02), (2, 1), (1, 2), (1, 3), (0, 0)):
        # Those of a reservation are counted from its grant on.
        report(_request(place, minutes, gpus=() if place else ("GPU-a", "GPU-b")))
    text = stream.getvalue()
    heads = [line for line in text.splitlines() if line.startswith("sentinel: ")]
    first = "waiting for 2 of GPU 0, 1, 2 (request 1a2b3c4d, place {} in the queue)"
    told = [line.removeprefix("sentinel: ") for line in heads]
    changed = [first.format(2), f"after 2 min, still {first.format(1)}"]
    at_last = "GPU 0-2 reserved as 1a2b3c4d; after 3 min, still waiting until their memory is free"
    if terminal:
        repeated = [
            f"after 1 min, still {first.format(2)}",
            f"after 3 min, still {first.format(1)}",
        ]
        assert told == [changed[0], repeated[0], changed[1], repeated[1], at_last]
    else:
        assert told == [*changed, at_last]
    assert text.count("  GPU 1: in use by foreign processes\n") == len(heads)
    assert "GPU 2: " not in text, "it is idle"
    assert "GPU 3: " not in text, "it was not asked for"


def test_a_wait_is_reported_without_an_answer_of_the_daemon(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = not_none(place_reporter(cast("Client", _Daemon(answers=False)), quiet=False))
    report(_request(1, 0))
    assert capsys.readouterr().err.startswith("sentinel: waiting for 2 of GPU 0, 1, 2 (req")
    assert place_reporter(cast("Client", _Daemon()), quiet=True) is None
