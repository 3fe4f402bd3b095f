"""Signals as messages, in the foreground and in a daemon."""

from __future__ import annotations

import os
import select
import signal

import pytest

from sentinel.supervisor.signals import Signals
from tests.harness.timing import TIMEOUT_S


def send(signals: Signals, *numbers: signal.Signals) -> None:
    """Send signals to this process and wait for their arrival."""
    for number in numbers:
        os.kill(os.getpid(), number)
    assert select.select(signals.files(), [], [], TIMEOUT_S)[0]


@pytest.mark.parametrize(
    ("number", "detached"),
    [
        *((number, False) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)),
        *((number, True) for number in (signal.SIGINT, signal.SIGTERM)),
    ],
)
def test_every_signal_requests_a_shutdown_except_sighup_in_a_daemon(
    number: signal.Signals, *, detached: bool
) -> None:
    with Signals(detached=detached) as signals:
        send(signals, *([signal.SIGHUP] if detached else []), number)
        assert signals.collect() == (number.name, False)
        assert signals.first is number
        assert signals.reload_requested() == detached


def test_sighup_requests_a_reload_in_a_daemon() -> None:
    with Signals(detached=True) as signals:
        send(signals, signal.SIGHUP, signal.SIGHUP)
        assert signals.collect() == (None, False)
        assert signals.first is None
        assert signals.reload_requested()
        assert not signals.reload_requested()
        assert signals.collect() == (None, False)
        assert not signals.reload_requested()
