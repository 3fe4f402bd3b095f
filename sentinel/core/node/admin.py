"""Whether somebody told us to keep off a GPU: pauses, reservations, and the daemon's own. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.core.state import GpuState, State
from sentinel.protocol.views import Reservation
from sentinel.units import format_duration


@dataclass(frozen=True, kw_only=True)
class AdminHold:
    """Why we keep off: ``admin`` is the state's name, ``rule`` and ``reason`` are for verdicts."""

    admin: str
    rule: str
    reason: str
    since: float | None = None
    until: float | None = None
    reservation: str | None = None


def admin_hold(state: State, gpu_state: GpuState, now: float) -> AdminHold | None:
    """Return why we are to keep off this GPU, or ``None`` where nobody said so."""
    if state.released is not None:
        reason = "the driver was let go of (pause --release)"
        return AdminHold(
            admin="RELEASED",
            rule="released",
            reason=reason,
            since=state.released.since,
            until=state.released.until,
        )
    reserved = reservation_of(state, gpu_state.gpu.uuid)
    if reserved is not None:
        reason = f"reserved{_left(reserved.until, now)}: {reserved.reason} ({reserved.id})"
        return AdminHold(
            admin="RESERVED",
            rule="reserved",
            reason=reason,
            since=reserved.since,
            until=reserved.until,
            reservation=reserved.id,
        )
    if gpu_state.paused is not None:
        reason = f"paused{_left(gpu_state.paused.until, now)}"
        return AdminHold(
            admin="PAUSED",
            rule="paused",
            reason=reason,
            since=gpu_state.paused.since,
            until=gpu_state.paused.until,
        )
    if not state.occupying:
        return AdminHold(admin="DRAINED", rule="drained", reason="told to hold nothing (stop)")
    return None


def reservation_of(state: State, uuid: str) -> Reservation | None:
    """Return the reservation that this GPU is part of."""
    for reservation in state.reservations.values():
        if uuid in reservation.gpus:
            return reservation
    return None


def _left(until: float | None, now: float) -> str:
    return "" if until is None else f" for {format_duration(max(0.0, until - now))} more"
