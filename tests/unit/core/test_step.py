"""What a chain of rules has decided."""

from __future__ import annotations

import math

from sentinel.core.step import Step, chain
from sentinel.protocol.events import Event


def event(at: float) -> Event:
    return Event(name="sentinel.stalled", at=at, fields={})


def test_a_chain_has_every_event_in_order_and_the_earliest_time() -> None:
    rules = [
        lambda number, due=due: Step(number + 1, events=(event(due),), due=due)
        for due in (5.0, 3.0, 4.0)
    ]
    first = Step(0, events=(event(7.0),), due=9.0)
    found = chain(first, rules)
    assert (found.state, found.due) == (3, 3.0)
    assert [one.at for one in found.events] == [7.0, 5.0, 3.0, 4.0]
    assert chain(Step(0, due=1.0), rules).due == 1.0
    assert chain(Step(0), []).due == math.inf
