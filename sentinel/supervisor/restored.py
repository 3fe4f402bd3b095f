"""Restore what an earlier daemon has left: its reservations and its sessions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from sentinel.config.model import Config
from sentinel.core.actions import Event
from sentinel.core.node import sessions
from sentinel.core.state import State
from sentinel.host.stores.timed_file import RESERVATIONS, SESSIONS, Clocks


@dataclass(frozen=True, kw_only=True)
class Restored:
    """The state and the configuration with what was restored."""

    state: State
    config: Config
    #: An event for each problem.
    warnings: tuple[Event, ...] = ()


def restore(state: State, config: Config, folder: Path | None) -> Restored:
    """Load what the files in a state folder have, before the loop starts.

    The API process writes these files. Reservations and sessions of missing GPUs are kept: a card
    may be lost today and back tomorrow.

    Args:
        state: The first state.
        config: The settings of this daemon.
        folder: The state folder, or None for a daemon without one.
    """
    if folder is None:
        return Restored(state=state, config=config)
    clocks = Clocks.read()
    held, why_not_reserved = RESERVATIONS.load(folder / RESERVATIONS.name, clocks)
    laid, why_not_started = SESSIONS.load(folder / SESSIONS.name, clocks)
    state = replace(state, reservations={reservation.id: reservation for reservation in held})
    state, config, left_out = sessions.restore(state, config, laid)
    problems = [("reservations", why_not_reserved), ("sessions", why_not_started)]
    problems += [("sessions", why) for why in left_out]
    return Restored(
        state=state,
        config=config,
        warnings=tuple(
            Event(
                name="service.warning", at=clocks.monotonic, fields={"about": about, "text": text}
            )
            for about, text in problems
            if text is not None
        ),
    )
