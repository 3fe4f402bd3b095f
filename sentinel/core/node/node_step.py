"""The result of one step of the whole node."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.core.actions import Action, Event
from sentinel.core.state import State


@dataclass(frozen=True, kw_only=True)
class NodeStep:
    """A new state with the actions and events that led to it."""

    state: State
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
