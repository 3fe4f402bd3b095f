"""The order in which requests are answered: administrators first, then one of each user."""

from __future__ import annotations

import asyncio

from sentinel.protocol.commands import Level

#: Levels with an order of their own; all lower ones are equal.
_RANKS = (Level.OWN, Level.ADMINISTER, Level.NONE)


class Turns:
    """Gives requests their turns, one at a time.

    The daemon's user and root are first, then administrators. All other users follow each other,
    with one turn each, however many requests each of them has sent.
    """

    def __init__(self) -> None:
        self._is_taken = False
        #: By rank and user, in the order of their next turns; a request waits for its future.
        self._waiting: dict[Level, dict[str | None, dict[asyncio.Future[bool], None]]] = {
            rank: {} for rank in _RANKS
        }

    async def take(self, user: str | None, level: Level, turn: asyncio.Future[bool]) -> bool:
        """Wait for a turn, which lasts until :meth:`end`.

        Args:
            user: The user or the token; None for all clients without one.
            level: What that user may do.
            turn: Becomes True with the turn; set it to False to give up.

        Returns:
            Whether there is a turn.
        """
        if not self._is_taken:
            self._is_taken = True
            return True
        rank = next(rank for rank in _RANKS if level >= rank)
        requests = self._waiting[rank].setdefault(user, {})
        requests[turn] = None
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.result():
                self.end()
            raise
        finally:
            requests.pop(turn, None)

    def end(self) -> None:
        """Give the turn to the next request, if one waits."""
        turn = self._next()
        self._is_taken = turn is not None
        if turn is not None:
            turn.set_result(True)

    def _next(self) -> asyncio.Future[bool] | None:
        """Choose the next request, and move its user to the end of its rank."""
        for users in self._waiting.values():
            while users:
                user = next(iter(users))
                requests = users.pop(user)
                turn = next((turn for turn in requests if not turn.done()), None)
                if turn is not None:
                    users[user] = requests
                    return turn
        return None


class LoopTurns(Turns):
    """Begins one answer in each turn of the event loop.

    The loop computes one answer at a time anyway, so only the order decides how long a request
    waits. An answer that waits itself delays no other.
    """

    async def take(self, user: str | None, level: Level, turn: asyncio.Future[bool]) -> bool:
        """Wait for a turn, which ends by itself."""
        has_turn = await super().take(user, level, turn)
        if has_turn:
            asyncio.get_running_loop().call_soon(self.end)
        return has_turn
