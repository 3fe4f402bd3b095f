"""Reservations and allocations from the request to the response: their leases, and the file.

A grant ends with its lease until its client has the answer. To end the lease and to answer are two
acts, and a process may die between them. Of the two losses, a reservation that a client relies on
and that ends is worse than one that no client was told of: the status shows the latter, its client
gets it by the same request again, and a command ends it. So it lasts before the client is told, but
not before nothing more has to be waited for:

1. The supervisor extends the lease and replies, which shows that there is still something to keep.
   The lease exceeds what follows: a write has 5 s, and a silent API process is replaced after 10 s.
2. A reservation is written to its file. Only from then on does a new daemon restore it.
3. The command that ends the lease is sent, and then the response, without a wait in between: the
   supervisor also reads what a process has sent before its death.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from sentinel.api.bodies import ProblemError
from sentinel.api.snapshots import Views
from sentinel.api.stores import StoreWriter
from sentinel.api.supervisor_link import SupervisorLink, check_accepted
from sentinel.protocol.commands import (
    LEASE_S,
    Caller,
    CancelGrant,
    Command,
    Extend,
    GrantKind,
    Refusal,
)
from sentinel.protocol.problem import Code
from sentinel.protocol.views import Grant, Reservation

T = TypeVar("T", bound=Grant)

#: How often the lease of what a client waits for is renewed.
_RENEW_EVERY_S = LEASE_S / 3


class Grants:
    """The grants that clients wait for.

    Args:
        views: The supervisor's state.
        supervisor: The channel to it.
        writer: Writes the file of the reservations.
    """

    def __init__(
        self, views: Views, supervisor: SupervisorLink, writer: StoreWriter[Reservation]
    ) -> None:
        self._views = views
        self._supervisor = supervisor
        self._writer = writer
        #: How many connections wait for each grant.
        self.waiting: Counter[tuple[GrantKind, str]] = Counter()
        #: How many of them are writing it, or have no reply yet to the end of the lease.
        self._keeping: Counter[tuple[GrantKind, str]] = Counter()

    def update(self) -> None:
        """Set what the file of the reservations should have now."""
        self._writer.update(
            replace(reservation, lease=None)
            for reservation in self._views.host.reservations
            if reservation.lease is None or self._keeping[reservation.kind, reservation.id]
        )

    async def obtain(
        self,
        kind: type[T],
        complete: Callable[[], Awaitable[None]],
        command: Callable[..., Command],
        *,
        by: Caller,
        id_: str,
        **fields: Any,
    ) -> T:
        """Request a grant, and return it when the client has to be told of nothing else.

        The same request again has the same answer. After a failure, nothing is granted, unless the
        same was asked for again: the connection may be one that the client has lost and replaced.

        Args:
            kind: The class of the grant.
            complete: Waits until the client can use what it is granted.
            command: The class of the command that requests it.
            by: The caller.
            id_: The id of the grant.
            fields: The other fields of the command.

        Raises:
            ProblemError: It was refused, could not be completed or stored, or was ended meanwhile.
        """
        key = kind.kind, id_
        extend = partial(Extend, by=by, kind=kind.kind, id=id_)
        asking = self._supervisor.execute(command, by=by, id=id_, **fields)
        accepted = asyncio.create_task(asking)
        renewing = asyncio.create_task(self._renew(extend))
        self.waiting[key] += 1
        try:
            await asyncio.shield(accepted)
            known = self._views.grant(kind, id_)
            if known is not None and known.lease is None:  # its answer was lost
                if isinstance(known, Reservation):
                    await self._writer.wait_written("The reservation is not stored")
                return known
            await complete()
            return await self._keep(kind, id_, extend)
        except BaseException:
            await accepted  # no request that was refused has anything to undo
            known = self._views.grant(kind, id_)
            is_told = known is None or known.lease is None or self._keeping[key] > 0
            if self.waiting[key] == 1 and not is_told:
                self._supervisor.post(CancelGrant, by=by, kind=kind.kind, id=id_)
            raise
        finally:
            renewing.cancel()
            self.waiting[key] -= 1
            self.waiting += Counter()  # without those that are zero

    async def _renew(self, extend: Callable[..., Extend]) -> None:
        """Renew a lease until this is cancelled."""
        while True:
            await asyncio.sleep(_RENEW_EVERY_S)
            self._supervisor.post(extend)

    async def _keep(self, kind: type[T], id_: str, extend: Callable[..., Extend]) -> T:
        """Store a grant and end its lease, as above; the response must follow without a wait.

        Raises:
            ProblemError: It was ended meanwhile, could not be stored, or there is no reply.
        """
        reply = await self._supervisor.request(extend)
        known = self._views.grant(kind, id_)
        if known is None or reply.refused is Refusal.NOT_FOUND:
            raise ProblemError(Code.CONFLICT, f"The {kind.kind} was ended before it was complete.")
        check_accepted(reply)
        count = partial(self._count_keeping, (kind.kind, id_))
        count(1)
        try:
            if isinstance(known, Reservation):  # an allocation does not outlive the daemon
                await self._writer.wait_written("Nothing is reserved")
            # The views that come before the reply show it without a lease.
            self._supervisor.submit(lambda _: count(-1), extend, kept=True)
        except BaseException:
            count(-1)
            raise
        return known

    def _count_keeping(self, key: tuple[GrantKind, str], change: int) -> None:
        self._keeping[key] += change
        self._keeping += Counter()  # without those that are zero
        self.update()
