"""Asks the driver through processes that are thrown away; one may not come back from a call."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait as wait_for_files
from typing import Any

from sentinel import wire
from sentinel.doctor.facts import DriverFacts, Fault, GpuFacts, Numbers, Unread
from sentinel.errors import WireError
from sentinel.gpu import health
from sentinel.inquiries import Answer, Asking, Examined
from sentinel.spawning import Child

__all__ = ["Asked", "Patience", "ask_driver"]

#: Datagrams taken at once; the rest is still there at the next turn.
_AT_ONCE = 256

#: What is said to hang where a process does not even begin to ask.
_START = "the start of the process that asks"

#: What may take long: a driver without persistence loads what it needs for a GPU.
_SLOW = {_START, health.OPENING, "handle"}


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a call may take, in seconds.

    ``opening`` is for the spawn, for the driver's start and for the first call to a GPU, which
    without persistence take 1 to 3 s for each GPU; ``call`` is for any other, which takes 0.3 s
    while a context is torn down.
    """

    opening: float = 60.0
    call: float = 10.0


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What came of it. ``stuck`` means that a process survives its SIGKILL, hung in the driver."""

    driver: DriverFacts
    gpus: tuple[GpuFacts, ...]
    stuck: bool


@dataclass
class _Notes:
    """All that the examiners have said so far, by GPU and call."""

    answers: dict[tuple[int | None, str], Answer] = field(default_factory=dict)
    faults: dict[int | None, Fault] = field(default_factory=dict)
    asking: Asking | None = None
    complete: bool = False


def ask_driver(patience: Patience) -> Asked:
    """Ask the driver for everything; a GPU on which a call hangs or crashes costs only its own.

    One examiner asks for all. Where it does not come back from a GPU, another one goes on with the
    GPUs after it, so the worst case is one patience for each GPU.

    Args:
        patience: How long each call may take.
    """
    notes, stuck = _Notes(), False
    while not notes.complete:
        skip = tuple(sorted({gpu for gpu, _ in notes.answers if gpu is not None} | _broken(notes)))
        fault, survived = _listen(notes, patience, skip)
        stuck = stuck or survived
        if fault is None:
            break
        gpu = notes.asking.gpu if notes.asking is not None else None
        if gpu in notes.faults:  # it was to be skipped, and was not
            break
        notes.faults[gpu] = fault
        if gpu is None:
            break
    return Asked(driver=_driver(notes), gpus=tuple(_gpus(notes)), stuck=stuck)


def _broken(notes: _Notes) -> set[int]:
    return {gpu for gpu in notes.faults if gpu is not None}


def _listen(notes: _Notes, patience: Patience, skip: tuple[int, ...]) -> tuple[Fault | None, bool]:
    """Hear one examiner to its end; return how it failed, and whether it cannot be killed."""
    notes.asking = Asking(call=_START)
    try:
        child = Child(health.run, skip, (), {})
    except OSError as error:
        return Fault(call=_call(notes), how=f"failed: {error}"), False
    try:
        fault = _hear(child, notes, patience)
    finally:
        child.kill()
        wait_for_files([child.pidfd], 1.0)
        code = child.reap() if child.ended() else None
    if code is not None and fault is not None and not fault.how:
        fault = replace(fault, how=_end(code))
    return fault, code is None


def _hear(child: Child, notes: _Notes, patience: Patience) -> Fault | None:
    """Note what an examiner says until its last word; a fault without ``how`` is its own end."""
    since = time.monotonic()
    while True:
        asking = notes.asking
        opening = asking is None or asking.call in _SLOW
        longest = patience.opening if opening else patience.call
        wait_for_files(child.files(), max(0.0, since + longest - time.monotonic()))
        ended = child.ended()  # looked at first, so that its last words are all there
        said = child.receive(_AT_ONCE)
        for datagram in said:
            since = time.monotonic()
            try:
                message = wire.decode(datagram, (Asking, Answer, Examined))
            except WireError as error:
                return Fault(call=_call(notes), how=f"was answered with garbage: {error.what}")
            match message:
                case Asking():
                    notes.asking = message
                case Answer():
                    notes.answers[message.gpu, message.call] = message
                case Examined():
                    notes.complete = True
                    return None
        if ended and not said:
            return Fault(call=_call(notes), how="")
        if time.monotonic() - since >= longest:
            return Fault(call=_call(notes), how=f"did not answer within {longest:g} s")


def _call(notes: _Notes) -> str:
    """Return NVML's name of what is being asked."""
    call = notes.asking.call if notes.asking is not None else ""
    return health.FUNCTIONS.get(call, call)


def _end(code: int) -> str:
    """Return how a process ended, in words."""
    if code >= 0:
        return f"ended the process that asked, with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"crashed the process that asked ({name})"


# --- from answers to facts -------------------------------------------------------------------


def _driver(notes: _Notes) -> DriverFacts:
    opened = notes.answers.get((None, health.OPENING))
    version = notes.answers.get((None, "version"))
    count = notes.answers.get((None, "count"))
    missing = opened.error if opened is not None else None
    if missing is None and count is not None and count.error is not None:
        missing = f"the GPUs cannot be counted: {count.error}"
    return DriverFacts(
        version=version.text if version is not None else None,
        cuda=_numbers(notes.answers.get((None, "cuda"))),
        missing=missing,
        fault=notes.faults.get(None),
    )


def _gpus(notes: _Notes) -> Iterator[GpuFacts]:
    indices = {gpu for gpu, _ in notes.answers} | set(notes.faults)
    for index in sorted(index for index in indices if index is not None):
        mine = {call: answer for (gpu, call), answer in notes.answers.items() if gpu == index}
        numbers: dict[str, Any] = {
            name: _numbers(mine.get(name)) for name in (*health.CALLS, *health.LISTS)
        }
        minor = numbers.pop("minor")
        unreachable = mine["handle"].error if "handle" in mine else None
        nameless = mine["uuid"].error if "uuid" in mine else None
        lost = next((answer.error for answer in mine.values() if answer.lost), None)
        yield GpuFacts(
            index=index,
            uuid=mine["uuid"].text if "uuid" in mine else None,
            name=mine["name"].text or "" if "name" in mine else "",
            lost=lost or unreachable or nameless,
            fault=notes.faults.get(index),
            node=None if isinstance(minor, Unread) else f"/dev/nvidia{minor[0]}",
            **numbers,
        )


def _numbers(answer: Answer | None) -> Numbers:
    """Return an answer's numbers; what was never asked, or does not exist, is not told."""
    if answer is None or answer.numbers is None:
        return Unread(why=answer.error if answer is not None else None)
    return answer.numbers
