"""Confirm a reservation or an allocation, so that it survives this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sentinel.api.context import ApiContext
from sentinel.api.http.errors import ProblemError
from sentinel.api.state.supervisor_link import check_accepted
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import Confirm, Refusal
from sentinel.protocol.problem import Code
from sentinel.protocol.views import Allocation, Reservation

G = TypeVar("G", Allocation, Reservation)

#: The time until the confirmation is in the supervisor's state.
_TIMEOUT_S = 2.0


async def confirm(
    context: ApiContext,
    by: Caller,
    id_: str,
    find: Callable[[str], G | None],
    *,
    allocation: bool = False,
) -> G:
    """Confirm a reservation or an allocation, and wait until that is published.

    Args:
        context: The shared state.
        by: The caller.
        id_: The id of the reservation or allocation.
        find: Finds it in the supervisor's state.
        allocation: Whether it is an allocation.

    Raises:
        ProblemError: Another client has ended it, or there is no reply.
    """
    what = "allocation" if allocation else "reservation"
    ended = ProblemError(Code.CONFLICT, f"The {what} was ended before it was complete.")
    reply = await context.supervisor.request(Confirm, by=by, id=id_, allocation=allocation)
    if reply.refused is Refusal.NOT_FOUND:
        raise ended
    check_accepted(reply)

    def is_published() -> bool:
        found = find(id_)
        return found is None or found.confirmed

    if not await context.views.until(is_published, time.monotonic() + _TIMEOUT_S):
        raise ProblemError(Code.UNAVAILABLE, f"The daemon does not publish the {what}.")
    found = find(id_)
    if found is None:
        raise ended
    return found
