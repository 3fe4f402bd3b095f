"""Reservations in a file, so that they outlive the daemon and a reboot."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.host.stores.timed_file import (
    Clocks,
    Stored,
    TimedFile,
    restored_fields,
    stored_fields,
)
from sentinel.protocol.views import Reservation


@dataclass(frozen=True, kw_only=True)
class StoredReservation(Stored):
    """One reservation in the file."""

    id: str
    gpus: tuple[str, ...]
    reason: str
    bound: bool


def _store(one: Reservation, clocks: Clocks) -> StoredReservation:
    return StoredReservation(
        id=one.id,
        gpus=one.gpus,
        reason=one.reason,
        bound=one.bound,
        **stored_fields(one, clocks),
    )


def _restore(one: StoredReservation, clocks: Clocks) -> Reservation:
    """Convert a stored reservation back.

    One that is bound to a process of an earlier boot is over. Within one boot, the API process
    checks whether the process is alive.
    """
    begun = restored_fields(one, clocks)
    if one.bound and one.boot != clocks.boot:
        begun["until"] = clocks.monotonic
    return Reservation(
        id=one.id,
        gpus=one.gpus,
        reason=one.reason,
        bound=one.bound,
        confirmed=True,
        **begun,
    )


#: The file of reservations.
RESERVATIONS = TimedFile[Reservation, StoredReservation](
    name="reservations.json",
    what="reservations",
    kind=StoredReservation,
    store=_store,
    restore_one=_restore,
    version=1,
)
