"""Asks the driver through processes that are thrown away; one may not come back from a call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sentinel.diagnostics.doctor.facts import DriverFacts, Fault, GpuFacts, Numbers, Unread
from sentinel.diagnostics.one_shot import (
    Crashed,
    Ended,
    Failure,
    Garbage,
    NotStarted,
    Silent,
    run_one_shot,
)
from sentinel.probe.nvml import inspection
from sentinel.protocol.inspection import Answer, Asking, Examined

#: What is said to hang where a process does not even begin to ask.
_START = Asking(call="the start of the process that asks")

#: What may take long: a driver without persistence loads what it needs for a GPU.
_SLOW = {_START.call, inspection.OPENING, "handle"}


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """How long a call may take, in seconds.

    ``opening`` is for the spawn, for the driver's start and for the first call to a GPU, which
    without persistence take 1 to 3 s for each GPU; ``call`` is for any other, which takes 0.3 s
    while a context is torn down.
    """

    opening: float = 60.0
    call: float = 10.0


@dataclass(frozen=True, kw_only=True)
class DriverInspection:
    """What came of it. ``stuck`` means that a process survives its SIGKILL, hung in the driver."""

    driver: DriverFacts
    gpus: tuple[GpuFacts, ...]
    stuck: bool


@dataclass
class _Notes:
    """All that the examiners have said so far, by GPU and call."""

    allowed: Timeouts
    answers: dict[tuple[int | None, str], Answer] = field(default_factory=dict)
    faults: dict[int | None, Fault] = field(default_factory=dict)
    asking: Asking = _START
    complete: bool = False

    def timeouts(self) -> float:
        """Return how long the call that was announced may take."""
        return self.allowed.opening if self.asking.call in _SLOW else self.allowed.call

    def take(self, message: object) -> bool:
        """Note what is asked or answered; return whether all has been asked."""
        match message:
            case Asking():
                self.asking = message
            case Answer():
                self.answers[message.gpu, message.call] = message
            case Examined():
                self.complete = True
        return self.complete


def ask_driver(timeouts: Timeouts) -> DriverInspection:
    """Ask the driver for everything; a GPU on which a call hangs or crashes costs only its own.

    One examiner asks for all. Where it does not come back from a GPU, another one goes on with the
    GPUs after it, so the worst case is one patience for each GPU.

    Args:
        timeouts: How long each call may take.
    """
    notes, stuck = _Notes(timeouts), False
    while not notes.complete:
        skip = tuple(sorted({gpu for gpu, _ in notes.answers if gpu is not None} | _broken(notes)))
        fault, survived = _examine(notes, skip)
        stuck = stuck or survived
        if fault is None:
            break
        gpu = notes.asking.gpu
        if gpu in notes.faults:  # it was to be skipped, and was not
            break
        notes.faults[gpu] = fault
        if gpu is None:
            break
    return DriverInspection(driver=_driver(notes), gpus=tuple(_gpus(notes)), stuck=stuck)


def _broken(notes: _Notes) -> set[int]:
    return {gpu for gpu in notes.faults if gpu is not None}


def _examine(notes: _Notes, skip: tuple[int, ...]) -> tuple[Fault | None, bool]:
    """Hear one examiner to its end; return how it failed, and whether it cannot be killed."""
    notes.asking = _START
    heard = run_one_shot(inspection.run, skip, {}, kinds=(Asking, Answer, Examined), notes=notes)
    if heard.failure is None:
        return None, heard.stuck
    # By NVML's own name, for people who look for what hung.
    call = inspection.FUNCTIONS.get(notes.asking.call, notes.asking.call)
    return Fault(call=call, how=_in_words(heard.failure)), heard.stuck


def _in_words(failure: Failure) -> str:
    """Return how a call failed."""
    match failure:
        case NotStarted(error=error):
            return f"failed: {error}"
        case Garbage(what=what):
            return f"was answered with garbage: {what}"
        case Silent(seconds=seconds):
            return f"did not answer within {seconds:g} s"
        case Ended(code=code):
            return f"ended the process that asked, with exit code {code}"
        case Crashed(signal=signal):
            return f"crashed the process that asked ({signal})"


# --- from answers to facts -------------------------------------------------------------------


def _driver(notes: _Notes) -> DriverFacts:
    opened = notes.answers.get((None, inspection.OPENING))
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
            name: _numbers(mine.get(name)) for name in (*inspection.CALLS, *inspection.LISTS)
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
