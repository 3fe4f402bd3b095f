"""The result of one command, and checks that several commands share. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sentinel.core.state import State
from sentinel.core.step import Step
from sentinel.protocol.commands import Caller, Refusal
from sentinel.protocol.places import Places


@dataclass(frozen=True)
class Accepted:
    """A command that was applied, with its answer."""

    step: Step[State]
    #: The answer for people.
    text: str
    #: The UUIDs of the affected GPUs.
    gpus: tuple[str, ...] = ()


class RefusedError(Exception):
    """A command was refused, and changes nothing.

    Args:
        refusal: The kind of reason.
        text: The reason for people.
    """

    def __init__(self, refusal: Refusal, text: str) -> None:
        super().__init__(text)
        self.refusal = refusal


def not_found(
    noun: str, name: str, known: Iterable[str], *, most: int | None = None
) -> RefusedError:
    """Build the refusal of a command that names something that does not exist.

    Args:
        noun: What is named, in the singular.
        name: The name that was given.
        known: The names that there are.
        most: List at most so many; None lists all of them.
    """
    names = sorted(known)
    listed = names[:most]
    more = f" and {len(names) - len(listed)} more" if len(listed) < len(names) else ""
    there = f"there are: {', '.join(listed)}{more}" if names else f"there are no {noun}s"
    return RefusedError(Refusal.NOT_FOUND, f"there is no {noun} {name!r}; {there}")


def check_gpus(state: State, gpus: tuple[str, ...]) -> None:
    """Refuse a command that names an unknown GPU."""
    unknown = [uuid for uuid in gpus if uuid not in state.gpu_states]
    if unknown:
        known = ", ".join(
            f"{gpu_state.gpu.index} {uuid}" for uuid, gpu_state in state.gpu_states.items()
        )
        text = f"there is no GPU {unknown[0]!r}; there are: {known}"
        raise RefusedError(Refusal.NO_SUCH_GPU, text)


def check_seconds(seconds: float | None) -> None:
    """Refuse a command with an invalid duration."""
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        raise RefusedError(Refusal.INVALID, f"{seconds!r} is not a number of seconds above 0")


def check_owner(by: Caller, begun_by: Caller, what: str) -> None:
    """Refuse to end what another user has begun, unless by an administrator."""
    if not by.may_end(begun_by):
        text = f"{what} belongs to {begun_by}; only that user and an administrator may end it"
        raise RefusedError(Refusal.FORBIDDEN, text)


def check_places(
    places: Places, taken: Iterable[tuple[str, int | None]], by: Caller, why: str = ""
) -> None:
    """Refuse a command that takes a place where none is left for its user.

    Args:
        places: The places.
        taken: The account of each place that is taken.
        by: The caller.
        why: Why a place is needed.
    """
    text = places.why_none(taken, by.account, by.level, name=str(by))
    if text is not None:
        raise RefusedError(Refusal.CONFLICT, f"{text}; {why}" if why else text)


def names_of(state: State, gpus: tuple[str, ...]) -> str:
    """Name GPUs by their indices."""
    indices = ", ".join(str(state.gpu_states[uuid].gpu.index) for uuid in gpus)
    return f"GPU {indices}"


def caller_fields(by: Caller | None) -> dict[str, object] | None:
    """Return the caller as a field of an event; None if the clock has done it."""
    if by is None:
        return None
    return {"via": by.via, "uid": by.uid, "user": by.user, "pid": by.pid}
