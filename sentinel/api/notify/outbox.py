"""The notifications that wait for one recipient: bounded, and repeated events are joined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

#: An event's name and its GPU, or None.
Key = tuple[str, str | None]

#: Waiting notifications; further ones are dropped.
MAX_WAITING = 256


@dataclass(frozen=True, kw_only=True)
class Notification:
    """One event, or several of one name and GPU."""

    #: The last of them, as in the log.
    event: Mapping[str, Any]
    #: How many, and the time of the first.
    count: int
    since: str
    #: When it may be sent, by the monotonic clock.
    due: float

    @property
    def key(self) -> Key:
        """The name of its event and the GPU."""
        return str(self.event.get("event")), self.event.get("gpu")


class Outbox:
    """Waiting notifications, one for each event name and GPU.

    The first event of a key is due at once. Later ones are due ``every`` seconds after the last was
    taken, and are joined until then.

    Args:
        every: The least time between two notifications of one key, in seconds.
    """

    def __init__(self, every: float) -> None:
        self._every = every
        self._waiting: dict[Key, Notification] = {}
        self._taken: dict[Key, float] = {}
        #: Events that found no room.
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, event: Mapping[str, Any], now: float) -> bool:
        """Add an event; return False if there is no room."""
        new = Notification(event=event, count=1, since=str(event.get("time")), due=now)
        before = self._waiting.get(new.key)
        if before is not None:
            self._waiting[new.key] = replace(before, event=event, count=before.count + 1)
            return True
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return False
        taken = self._taken.get(new.key)
        due = now if taken is None else max(now, taken + self._every)
        self._waiting[new.key] = replace(new, due=due)
        return True

    def next_due(self) -> float | None:
        """Compute when the next notification is due; None if none waits."""
        return min((one.due for one in self._waiting.values()), default=None)

    def take(self, now: float) -> Notification | None:
        """Take the notification that is due first, if one is due."""
        first = min(self._waiting.values(), key=lambda one: one.due, default=None)
        if first is None or first.due > now:
            return None
        del self._waiting[first.key]
        self._taken = {key: at for key, at in self._taken.items() if at + self._every > now}
        self._taken[first.key] = now
        return first
