"""Allocate GPU memory: command, wait until the memory is free, confirm; undone on failure."""

from __future__ import annotations

import time
from pathlib import Path

from sentinel.api.context import ApiContext
from sentinel.api.http.errors import ProblemError
from sentinel.api.state.memory_budget import memory_free
from sentinel.api.state.supervisor_link import check_accepted
from sentinel.host.procfs import read_stat
from sentinel.protocol.api_types import Code
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import Allocate, Confirm, Deallocate, Refusal
from sentinel.protocol.views import Allocation

#: The time until a confirmed allocation is in the supervisor's state.
_CONFIRM_TIMEOUT_S = 2.0
#: The words of the line NSpid for a process with one PID, in this PID namespace.
_NSPID_WORDS = 2
_ENDED = "The allocation was ended before it was complete."


async def allocate_memory(
    context: ApiContext, by: Caller, *, id_: str, gpu: str, size: int, wait_s: float
) -> Allocation:
    """Allocate memory and wait until it is free; after a failure, nothing is allocated.

    Args:
        context: The shared state.
        by: The process that gets the memory.
        id_: The id, which must not be in use.
        gpu: The GPU's UUID.
        size: Bytes.
        wait_s: The maximum wait.

    Raises:
        ProblemError: It was refused, the memory is not free in time, or another client ended it.
    """
    deadline = time.monotonic() + wait_s
    is_created = False
    context.pending_allocations[id_] += 1
    try:
        await context.supervisor.execute(Allocate, by=by, id=id_, gpu=gpu, size=size)
        is_created = True  # before, the id may be another client's, and must not be undone
        await memory_free(context.views, gpu, time.monotonic(), deadline)
        return await _confirm(context, by, id_)
    except BaseException:
        if is_created:
            context.supervisor.post(Deallocate, by=by, id=id_)
        raise
    finally:
        context.pending_allocations[id_] -= 1
        if not context.pending_allocations[id_]:
            del context.pending_allocations[id_]


def resolve_holder(by: Caller, pid: int | None) -> Caller:
    """Determine the process that gets the memory: the caller, or the one with ``pid``.

    Raises:
        ProblemError: The process does not exist, or the caller must not name it.
    """
    if by.via != "unix":
        if pid is None:
            return by
        why = "A TCP client is not a process of this host and cannot name one: leave pid out."
        raise ProblemError(Code.INVALID, why)
    if by.started is None:
        why = (
            "The calling process is not visible here, as from another container, so its end cannot"
            " be seen: use TCP, and deallocate the memory."
        )
        raise ProblemError(Code.INVALID, why)
    if pid is None or pid == by.pid:
        return by
    if _is_in_other_namespace(by.pid or 0):
        why = (
            f"pid: the caller is in another PID namespace, where {pid} is another process:"
            " leave pid out, and call from the process that needs the memory."
        )
        raise ProblemError(Code.INVALID, why)
    before = read_stat(pid)
    uid = _uid_of(pid)
    stat = read_stat(pid)
    if before is None or stat is None or uid is None or not stat.alive or stat != before:
        raise ProblemError(Code.INVALID, f"pid: process {pid} is not visible here.")
    if by.uid not in {0, uid}:
        why = f"pid: process {pid} belongs to user {uid}; only that user and root may name it."
        raise ProblemError(Code.FORBIDDEN, why)
    return Caller(via=by.via, uid=uid, pid=pid, started=stat.started)


def _is_in_other_namespace(pid: int) -> bool:
    """Check whether a process is in a nested PID namespace: it has more than one PID."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    line = next((line for line in text.splitlines() if line.startswith("NSpid:")), "")
    return len(line.split()) != _NSPID_WORDS


def _uid_of(pid: int) -> int | None:
    """Read the real user of a process; its folder in /proc may belong to root."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    line = next((line for line in text.splitlines() if line.startswith("Uid:")), "")
    return int(line.split()[1]) if line else None


async def _confirm(context: ApiContext, by: Caller, id_: str) -> Allocation:
    """Confirm an allocation, so that it survives this process.

    Raises:
        ProblemError: Another client has ended it, or there is no reply.
    """
    reply = await context.supervisor.request(Confirm, by=by, id=id_, allocation=True)
    if reply.refused is Refusal.NOT_FOUND:
        raise ProblemError(Code.CONFLICT, _ENDED)
    check_accepted(reply)

    def is_published() -> bool:
        found = context.views.allocation(id_)
        return found is None or found.confirmed

    if not await context.views.until(is_published, time.monotonic() + _CONFIRM_TIMEOUT_S):
        raise ProblemError(Code.UNAVAILABLE, "The daemon does not publish the allocation.")
    found = context.views.allocation(id_)
    if found is None:
        raise ProblemError(Code.CONFLICT, _ENDED)
    return found
