"""The result of one command, and checks that several commands share. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from sentinel.config.model import Config
from sentinel.core.actions import Event
from sentinel.core.state import State
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import Refusal


@dataclass
class CommandResult:
    """The result of one command."""

    state: State
    #: The answer for people.
    text: str
    #: The UUIDs of the affected GPUs.
    gpus: tuple[str, ...] = ()
    #: Why the command was refused; it then changed nothing.
    refused: Refusal | None = None
    events: list[Event] = field(default_factory=list)
    #: A new configuration, or None.
    config: Config | None = None
    #: The reason for a shutdown, or None.
    stop: str | None = None


def not_found(
    state: State, noun: str, name: str, known: Iterable[str], *, most: int | None = None
) -> CommandResult:
    """Refuse a command that names something that does not exist, and list what there is.

    Args:
        state: The state, which stays as it is.
        noun: What is named, in the singular.
        name: The name that was given.
        known: The names that there are.
        most: List at most so many; None lists all of them.
    """
    names = sorted(known)
    listed = names[:most]
    more = f" and {len(names) - len(listed)} more" if len(listed) < len(names) else ""
    there = f"there are: {', '.join(listed)}{more}" if names else f"there are no {noun}s"
    text = f"there is no {noun} {name!r}; {there}"
    return CommandResult(state, text, refused=Refusal.NOT_FOUND)


def wrong_gpus(state: State, gpus: tuple[str, ...]) -> CommandResult | None:
    """Refuse a command that names an unknown GPU; return None if all are known."""
    unknown = [uuid for uuid in gpus if uuid not in state.gpu_states]
    if not unknown:
        return None
    known = ", ".join(
        f"{gpu_state.gpu.index} {uuid}" for uuid, gpu_state in state.gpu_states.items()
    )
    text = f"there is no GPU {unknown[0]!r}; there are: {known}"
    return CommandResult(state, text, refused=Refusal.NO_SUCH_GPU)


def wrong_seconds(state: State, seconds: float | None) -> CommandResult | None:
    """Refuse a command with an invalid duration; return None if it is valid."""
    if seconds is None or (math.isfinite(seconds) and seconds > 0):
        return None
    return CommandResult(
        state, f"{seconds!r} is not a number of seconds above 0", refused=Refusal.INVALID
    )


def names_of(state: State, gpus: tuple[str, ...]) -> str:
    """Name GPUs by their indices."""
    indices = ", ".join(str(state.gpu_states[uuid].gpu.index) for uuid in gpus)
    return f"GPU{'' if len(gpus) == 1 else 's'} {indices}"


def not_owner(state: State, by: Caller, begun_by: Caller, what: str) -> CommandResult | None:
    """Refuse to end what another user has begun; return None for its owner or an administrator."""
    if by.may_end(begun_by):
        return None
    text = f"{what} belongs to {begun_by}; only that user and an administrator may end it"
    return CommandResult(state, text, refused=Refusal.FORBIDDEN)


def caller_fields(by: Caller) -> dict[str, object]:
    """Return the caller as a field of an event."""
    return {"via": by.via, "uid": by.uid, "user": by.user, "pid": by.pid}
