"""The one result of a decision: a new state, what to do, what to report, and when to run again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar, TypeVarTuple

from sentinel.core.actions import Action, Event

S = TypeVar("S")
Context = TypeVarTuple("Context")


class Step(NamedTuple, Generic[S]):
    """The result of a rule, or of several rules in a row, for the whole state or one GPU.

    A tuple, since a tick makes hundreds, and a frozen dataclass takes three times as long.
    """

    state: S
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    #: When to run again without any news: a rule that compares times names the next one here.
    due: float = math.inf

    def then(self, rule: Callable[[S, *Context], Step[S]], *context: *Context) -> Step[S]:
        """Apply another rule to the new state."""
        done = rule(self.state, *context)
        due = min(done.due, self.due)
        return Step(done.state, self.actions + done.actions, self.events + done.events, due)


def chain(
    step: Step[S], rules: Iterable[Callable[[S, *Context], Step[S]]], *context: *Context
) -> Step[S]:
    """Apply rules one after another, each to the state that the one before has left.

    Args:
        step: What was decided before.
        rules: The rules.
        context: Further arguments of every rule.

    Returns:
        The last state, all actions and events in order, and the earliest time to run again.
    """
    for rule in rules:
        step = step.then(rule, *context)
    return step


def upcoming(now: float, *times: float | None) -> float:
    """Return the earliest of the times that have not come; infinity if there is none."""
    earliest = math.inf
    for time in times:
        if time is not None and now < time < earliest:
            earliest = time
    return earliest
