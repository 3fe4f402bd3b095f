"""Find the operator's hold on a GPU: a release, reservation or pause. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.core.gpu_state import GpuState
from sentinel.core.state import State
from sentinel.protocol.views import Reservation


@dataclass(frozen=True, kw_only=True)
class AdminHold:
    """Why an operator keeps a GPU free."""

    #: The administrative state, as in :class:`sentinel.protocol.views.GpuView`.
    admin: str
    #: For verdicts.
    rule: str
    reason: str
    since: float | None = None
    until: float | None = None
    reservation: str | None = None


def admin_hold(state: State, gpu_state: GpuState) -> AdminHold | None:
    """Return the hold on a GPU, or None."""
    if state.released is not None:
        reason = "the driver is released (pause --release)"
        return AdminHold(
            admin="RELEASED",
            rule="released",
            reason=reason,
            since=state.released.since,
            until=state.released.until,
        )
    reserved = reservation_of(state, gpu_state.gpu.uuid)
    if reserved is not None:
        why = f"{reserved.reason} ({reserved.id})" if reserved.reason else reserved.id
        return AdminHold(
            admin="RESERVED",
            rule="reserved",
            reason=f"reserved: {why}",
            since=reserved.since,
            until=reserved.until,
            reservation=reserved.id,
        )
    if gpu_state.pause is not None:
        return AdminHold(
            admin="PAUSED",
            rule="paused",
            reason="paused until sentinel resume" if gpu_state.pause.until is None else "paused",
            since=gpu_state.pause.since,
            until=gpu_state.pause.until,
        )
    return None


def reservation_of(state: State, uuid: str) -> Reservation | None:
    """Return the reservation that includes this GPU, or None."""
    for reservation in state.reservations.values():
        if uuid in reservation.gpus:
            return reservation
    return None
