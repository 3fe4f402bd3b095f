"""A child that only answers is heard out, however it ends, and is gone afterwards."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from collections.abc import Sequence

import psutil
import pytest

from sentinel.diagnostics.one_shot import (
    Crashed,
    Ended,
    Garbage,
    NotStarted,
    OneShotResult,
    Silent,
    run_one_shot,
)
from sentinel.errors import WireError
from sentinel.protocol.codec import encode
from sentinel.protocol.inspection import Asking, Examined, Importing
from tests.harness.timing import TIMEOUT_S


def speak(script: Sequence[object], channel: socket.socket, parent: int) -> None:
    """Send each message of a script, ``exit`` with a code or be killed by a ``signal``."""
    for step in script:
        match step:
            case ("exit", int(code)):
                os._exit(code)
            case ("signal", int(number)):
                os.kill(os.getpid(), number)
            case bytes():
                channel.sendall(step)
            case _:
                channel.sendall(encode(step))
    time.sleep(600)


class Notes:
    """Bears silence for as long as it is told, and takes calls that are named by a letter."""

    def __init__(self, timeouts: float = TIMEOUT_S) -> None:
        self.calls: list[str] = []
        self.left = timeouts

    def timeouts(self) -> float:
        return self.left

    def take(self, message: object) -> bool:
        match message:
            case Asking(call=call) if call.isalpha():
                self.calls.append(call)
            case Asking():
                raise WireError("no letter")
        return isinstance(message, Examined)


def heard(notes: Notes, *script: object) -> OneShotResult:
    """Hear out a child that follows a script; nothing may be left of it."""
    before = psutil.Process().children()
    found = run_one_shot(speak, script, {}, kinds=(Asking, Examined), notes=notes)
    after = [child for child in psutil.Process().children() if child not in before]
    # multiprocessing keeps its resource tracker.
    assert not [child for child in after if "resource_tracker" not in " ".join(child.cmdline())]
    return found


def asking(calls: str) -> list[Asking]:
    return [Asking(call=call) for call in calls]


def test_after_its_last_word_a_child_is_ended() -> None:
    notes = Notes()
    script = [*asking("ab"), Examined(), *asking("c")]
    assert heard(notes, *script) == OneShotResult(failure=None, stuck=False)
    assert notes.calls == ["a", "b"]


@pytest.mark.parametrize(
    ("end", "failure"),
    [
        (("exit", 0), Ended(code=0)),
        (("exit", 3), Ended(code=3)),
        (("signal", signal.SIGSEGV), Crashed(signal="SIGSEGV")),
        (("signal", 40), Crashed(signal="signal 40")),
    ],
)
def test_all_that_a_child_said_before_its_end_is_heard(
    end: object, failure: Ended | Crashed
) -> None:
    notes = Notes()
    many = asking("abcdefgh" * 20)
    assert heard(notes, *many, end) == OneShotResult(failure=failure, stuck=False)
    assert notes.calls == [one.call for one in many]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"{}", "invalid message"),
        (Importing(number=1), "unexpected type 'Importing'"),
        (Asking(call="1"), "no letter"),
    ],
)
def test_what_makes_no_sense_is_the_end_of_it(said: object, words: str) -> None:
    notes = Notes()
    found = heard(notes, *asking("a"), said, *asking("b"))
    assert isinstance(found.failure, Garbage)
    assert words in found.failure.what
    assert notes.calls == ["a"]


def test_a_child_is_waited_for_as_long_as_its_last_message_allows() -> None:
    class Hurrying(Notes):
        def take(self, message: object) -> bool:
            self.left = 0.5
            return super().take(message)

    notes = Hurrying()
    assert heard(notes, *asking("a")) == OneShotResult(failure=Silent(seconds=0.5), stuck=False)
    assert notes.calls == ["a"]


def test_a_child_that_cannot_be_spawned_is_a_failure_like_others() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        found = run_one_shot(speak, (), {}, kinds=(), notes=Notes())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert isinstance(found.failure, NotStarted)
    assert "Too many open files" in found.failure.error
    assert not found.stuck
