"""Hears a child out that only answers: until its last word, its end, or the end of our patience.

For what may hang or crash whoever asks it. Such a child says what it does next, so that it is known
what it was at when no more came.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from multiprocessing.connection import wait as wait_for_files
from typing import Protocol

from sentinel.errors import WireError
from sentinel.protocol import codec
from sentinel.supervisor.child_process import Child

#: Datagrams taken at once; the rest is still there at the next turn.
_AT_ONCE = 64
#: How long a killed process may take to be seen gone, in seconds.
_GONE_WITHIN = 1.0


@dataclass(frozen=True, kw_only=True)
class NotStarted:
    """The host could not even spawn it."""

    error: str


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """It said something that it never says."""

    what: str


@dataclass(frozen=True, kw_only=True)
class Silent:
    """It said nothing for so many seconds, which were all that it had."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class Ended:
    """It ended with this exit code and without its last word."""

    code: int


@dataclass(frozen=True, kw_only=True)
class Crashed:
    """A signal ended it, here by its name."""

    signal: str


#: Why a child did not come to its last word.
Failure = NotStarted | Garbage | Silent | Ended | Crashed


@dataclass(frozen=True, kw_only=True)
class OneShotResult:
    """How it went: without a ``failure``, the child said its last word.

    ``stuck`` means that it survives its SIGKILL; the interpreter's own exit would wait for it,
    maybe for ever.
    """

    failure: Failure | None
    stuck: bool


class Notes(Protocol):
    """What is made of a child's words."""

    def timeouts(self) -> float:
        """Return for how many seconds after its last message the child may be silent now."""
        ...

    def take(self, message: object) -> bool:
        """Take a message down; return whether it was the last word.

        Raises:
            WireError: It makes no sense.
        """
        ...


class _Over(Enum):
    """Why nothing more is to be heard of a child that did nothing wrong."""

    LAST_WORD = auto()
    ITS_END = auto()


def run_one_shot(
    target: Callable[..., None],
    first: object,
    environment: Mapping[str, str],
    *,
    kinds: Iterable[type[object]],
    notes: Notes,
) -> OneShotResult:
    """Spawn a child, hear what it says, and end it.

    Args:
        target: Its entry function, as :class:`Child` takes it.
        first: What it is told.
        environment: Variables that it gets on top of ours.
        kinds: What it may say.
        notes: Where that goes.
    """
    try:
        child = Child(target, first, (), environment)
    except OSError as error:
        return OneShotResult(failure=NotStarted(error=str(error)), stuck=False)
    try:
        over = _hear(child, tuple(kinds), notes)
    finally:
        child.kill()
        wait_for_files([child.pidfd], _GONE_WITHIN)
        stuck = not child.ended()
        code = 0 if stuck else child.reap()
    match over:
        case _Over.LAST_WORD:
            return OneShotResult(failure=None, stuck=stuck)
        case _Over.ITS_END:
            return OneShotResult(failure=_how_it_ended(code), stuck=stuck)
        case Garbage() | Silent():
            return OneShotResult(failure=over, stuck=stuck)


def _hear(child: Child, kinds: tuple[type[object], ...], notes: Notes) -> Garbage | Silent | _Over:
    """Take down what a child says until there is nothing more to come, or something is wrong."""
    since = time.monotonic()
    while True:
        longest = notes.timeouts()
        wait_for_files(child.files(), max(0.0, since + longest - time.monotonic()))
        ended = child.ended()  # looked at first, so that its last words are all there
        datagrams = child.receive(_AT_ONCE)
        for datagram in datagrams:
            since = time.monotonic()
            try:
                if notes.take(codec.decode(datagram, kinds)):
                    return _Over.LAST_WORD
            except WireError as error:
                return Garbage(what=error.what)
        if ended and not datagrams:
            return _Over.ITS_END
        if time.monotonic() - since >= longest:
            return Silent(seconds=longest)


def _how_it_ended(code: int) -> Ended | Crashed:
    """Return what the exit code of a child says; below 0, it is a signal's number."""
    if code >= 0:
        return Ended(code=code)
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return Crashed(signal=name)
