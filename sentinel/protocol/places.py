"""Places that users share, such as those of the queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from sentinel.protocol.commands import Level

User = TypeVar("User")


@dataclass(frozen=True)
class Places:
    """A limited number of places, of which some are left for other users and for administrators.

    The first place of a user or token is counted apart, so that others cannot take it. A user or
    token has a quarter at most. The last quarter is for administrators, and half of it for the
    daemon's user and root, who have no share of their own.

    Args:
        total: How many there are, and at most as many first places besides.
        noun: What takes a place, in the plural.
        enders: Who can give a place back, for the error.
    """

    total: int
    noun: str
    enders: str

    @property
    def share(self) -> int:
        """How many places a user or token has at most."""
        return self.total // 4

    def _kept(self, level: Level) -> int:
        """Count the places that are left for higher levels."""
        return {Level.OWN: 0, Level.ADMINISTER: self.total // 8}.get(level, self.total // 4)

    def why_none(self, taken: Iterable[User], user: User, level: Level, *, name: str) -> str | None:
        """Explain why a user may not take another place, or return None.

        Args:
            taken: The user of each place that is taken.
            user: The user that asks.
            level: What that user may do.
            name: The user's name for people.
        """
        used = Counter(taken)
        if level < Level.OWN and used[user] >= self.share:
            most = f"each user has at most {self.share}"
            return f"{name} has {used[user]} {self.noun}, and {most}: {self.enders} can end some"
        first = min(len(used), self.total)
        further, kept = used.total() - first, self._kept(level)
        if (not used[user] and first < self.total) or further < self.total - kept:
            return None
        who = "administrators" if level < Level.ADMINISTER else "the daemon's user and root"
        left = f", and {kept} are kept for {who}" if kept else ""
        taken_now = f"{further} of {self.total} places for further {self.noun} are taken{left}"
        return f"{taken_now}: {self.enders} can end some"
