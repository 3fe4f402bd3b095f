"""Start and end sessions: settings of some GPUs under a name, laid over the daemon's. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from sentinel.config.model import SETTINGS
from sentinel.config.setting import Scope
from sentinel.core.burnin import interface as burnin
from sentinel.core.lifecycle import reset_failures
from sentinel.core.node.command_result import (
    Accepted,
    RefusedError,
    caller_fields,
    check_gpus,
    check_seconds,
    names_of,
    not_found,
)
from sentinel.core.node.gpu_settings import lay_settings
from sentinel.core.observation import Observation
from sentinel.core.state import State
from sentinel.core.step import Event, Step, gpu_fields, upcoming
from sentinel.errors import ConfigError
from sentinel.protocol.commands import Caller, EndSession, Refusal, StartSession
from sentinel.protocol.views import Session

#: The most characters of the settings of all sessions together, which the daemon keeps in memory.
MAX_TEXT_LENGTH = 100_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
#: The settings of a session: those that a single GPU may have.
_KEYS = frozenset(setting.key for setting in SETTINGS if setting.scope is Scope.GPU)
_ALL_KEYS = frozenset(setting.key for setting in SETTINGS)


def start(state: State, command: StartSession, seen: Observation) -> Accepted:
    """Apply a command that starts a session."""
    now = seen.now
    check_gpus(state, command.gpus)
    check_seconds(command.seconds)
    if _is_started(state, command):  # by a client that has lost the response
        text = f"session {command.name} has these settings already"
        return Accepted(Step(state), text, command.gpus)
    invalid = _why_invalid(command)
    if invalid is not None:
        raise RefusedError(Refusal.INVALID, invalid)
    conflict = _why_in_conflict(state, command)
    if conflict is not None:
        raise RefusedError(Refusal.CONFLICT, conflict)
    session = Session(
        name=command.name,
        gpus=command.gpus,
        settings=command.settings,
        by=command.by,
        since=now,
        until=None if command.seconds is None else now + command.seconds,
    )
    fields = {
        "session": session.name,
        "gpus": gpu_fields(state.gpu_states[uuid].gpu for uuid in _present(state, session)),
        "settings": session.settings,
        "for_s": command.seconds,
        "by": caller_fields(command.by),
    }
    event = Event(name="session.started", at=now, fields=fields)
    text = f"session {session.name} has {names_of(state, session.gpus)}"
    # Earlier failures were those of other settings.
    state = lay_settings(_with(state, session)).change_gpus(reset_failures, session.gpus)
    return Accepted(Step(state, events=(event,)), text, session.gpus)


def end(state: State, command: EndSession, seen: Observation) -> Accepted:
    """Apply a command that ends a session."""
    session = state.sessions.get(command.name)
    if session is None:
        raise not_found("session", command.name, state.sessions)
    step = _end(state, session, command.by, seen.now)
    text = f"session {session.name} has ended; its GPUs have the daemon's settings"
    return Accepted(step, text, session.gpus)


def expire(state: State, seen: Observation) -> Step[State]:
    """End expired sessions."""
    step, now = Step(state), seen.now
    for session in state.sessions.values():
        if session.until is not None and now >= session.until:
            step = step.then(_end, session, None, now)
    untils = [session.until for session in step.state.sessions.values()]
    return step._replace(due=upcoming(now, *untils))


def restore(state: State, sessions: Iterable[Session]) -> tuple[State, list[str]]:
    """Start the stored sessions of an earlier daemon again.

    A daemon starts although settings have changed that a session contradicts. Such a session is
    suspended: it stays in the file and in the status, since a client was told that it had started,
    and the next daemon tries again.

    Returns:
        The state, and why sessions are suspended, a sentence each.
    """
    suspended = []
    for session in sessions:
        if session.name in state.sessions:  # only of a file that was written by hand
            suspended.append(f"session {session.name}: another session has its name; it has ended")
            continue
        unfit = _why_unfit(state, session)
        try:
            if unfit is None:
                state = lay_settings(_with(state, session))
        except ConfigError as error:
            unfit = error.what.removeprefix(f"session {session.name}: ")
        if unfit is not None:
            suspended.append(
                f"session {session.name}: {unfit}; it is suspended, and ends with"
                f" `sentinel session stop {session.name}`"
            )
            state = _with(state, replace(session, suspended=" ".join(unfit.split())))
    return state, suspended


def _with(state: State, session: Session) -> State:
    return replace(state, sessions={**state.sessions, session.name: session})


def name_for(state: State, uuid: str) -> str | None:
    """Return the name of a GPU's session, or None if it is in none that is in effect."""
    active = (session for session in state.sessions.values() if session.suspended is None)
    return next((session.name for session in active if uuid in session.gpus), None)


def _end(state: State, session: Session, by: Caller | None, now: float) -> Step[State]:
    """End a session."""
    fields = {
        "session": session.name,
        "gpus": gpu_fields(state.gpu_states[uuid].gpu for uuid in _present(state, session)),
        "by": caller_fields(by),
    }
    event = Event(name="session.ended", at=now, fields=fields)
    left = {name: one for name, one in state.sessions.items() if name != session.name}
    state = lay_settings(replace(state, sessions=left)).change_gpus(reset_failures, session.gpus)
    return Step(state, events=(event,))


def _is_started(state: State, command: StartSession) -> bool:
    """Check whether a command has started its session before."""
    there = state.sessions.get(command.name)
    return (
        there is not None
        and there.suspended is None
        and there.by.account == command.by.account
        and (there.gpus, there.settings) == (command.gpus, command.settings)
        and (there.until is None) == (command.seconds is None)
    )


def _why_invalid(command: StartSession) -> str | None:
    """Explain why a session cannot be of this form, or return None."""
    if command.name == "all":
        return "`all` means every session: choose another name"
    if _NAME.fullmatch(command.name) is None:
        return (
            f"{command.name!r} cannot be the name of a session: use 1 to 64 letters, digits or"
            " ._:-; begin with a letter or digit"
        )
    if not command.gpus or len(set(command.gpus)) != len(command.gpus):
        return "a session has GPUs, each once"
    foreign = sorted(command.settings.keys() - _KEYS)
    return f"{foreign[0]} cannot be set for a single GPU" if foreign else None


def _why_unfit(state: State, session: Session) -> str | None:
    """Explain why a stored session cannot go on beside those before it, or return None."""
    foreign = sorted(session.settings.keys() & _ALL_KEYS - _KEYS)
    if foreign:
        return f"{foreign[0]} cannot be set for a single GPU"
    taken = next(filter(None, (name_for(state, uuid) for uuid in session.gpus)), None)
    return None if taken is None else f"session {taken} has a GPU of it"


def _why_in_conflict(state: State, command: StartSession) -> str | None:
    """Explain why a session cannot be started now, or return None."""
    if state.config.dry_run:
        return "this sentinel only watches (--monitor) and occupies nothing"
    if (locked := burnin.why_locked(state)) is not None:
        return locked
    named = state.sessions.get(command.name)
    if named is not None:
        there = names_of(state, _present(state, named))
        what = f"there is a session {named.name!r} already, with {there}"
        return f"{what}: end it first (sentinel session stop {named.name})"
    for uuid in command.gpus:
        other = name_for(state, uuid)
        if other is not None:
            gpu = state.gpu_states[uuid].gpu.index
            return (
                f"GPU {gpu} is in the session {other!r}, and a GPU is in one session at most:"
                f" end that first (sentinel session stop {other})"
            )
    texts = [*command.settings.values()]
    texts += [text for session in state.sessions.values() for text in session.settings.values()]
    if sum(map(len, texts)) > MAX_TEXT_LENGTH:
        return f"the settings of all sessions together have at most {MAX_TEXT_LENGTH} characters"
    return None


def _present(state: State, session: Session) -> tuple[str, ...]:
    """List the GPUs of a session that this daemon has."""
    return tuple(uuid for uuid in session.gpus if uuid in state.gpu_states)
