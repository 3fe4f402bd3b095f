"""Restore what an earlier daemon has left: its reservations and its sessions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sentinel.core.actions import Event
from sentinel.core.node import sessions
from sentinel.core.state import State
from sentinel.core.step import Step
from sentinel.host.stores.timed_file import RESERVATIONS, SESSIONS, Clocks


def restore(state: State, folder: Path | None) -> Step[State]:
    """Load what the files in a state folder have, before the loop starts.

    The API process writes these files. Reservations and sessions of missing GPUs are kept: a card
    may be lost today and back tomorrow.

    Args:
        state: The first state.
        folder: The state folder, or None for a daemon without one.

    Returns:
        The state with what was restored, and an event for each problem.
    """
    if folder is None:
        return Step(state)
    clocks = Clocks.read()
    held, why_not_reserved = RESERVATIONS.load(folder / RESERVATIONS.name, clocks)
    laid, why_not_started = SESSIONS.load(folder / SESSIONS.name, clocks)
    state = replace(state, reservations={reservation.id: reservation for reservation in held})
    state, left_out = sessions.restore(state, laid)
    problems = [("reservations", why_not_reserved), ("sessions", why_not_started)]
    problems += [("sessions", why) for why in left_out]
    events = tuple(
        Event(name="service.warning", at=clocks.monotonic, fields={"about": about, "text": text})
        for about, text in problems
        if text is not None
    )
    return Step(state, events=events)
