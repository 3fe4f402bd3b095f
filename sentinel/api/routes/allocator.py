"""Allocate GPU memory: command, wait until the memory is free, confirm; undone on failure."""

from __future__ import annotations

import time

from sentinel.api.context import ApiContext
from sentinel.api.http.errors import ProblemError
from sentinel.api.routes.confirmation import confirm
from sentinel.api.state.memory_budget import memory_free
from sentinel.host.processes.procfs import read_stat, read_status
from sentinel.host.user_names import USER_NAMES
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import Allocate, CancelAllocation
from sentinel.protocol.problem import Code
from sentinel.protocol.views import Allocation


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
        return await confirm(context, by, id_, context.views.allocation, allocation=True)
    except BaseException:
        if is_created:
            context.supervisor.post(CancelAllocation, by=by, id=id_)
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
            " be seen: use TCP, and cancel the allocation."
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
    # The same process both times. Its state and its name may have changed in between.
    if (
        before is None
        or stat is None
        or uid is None
        or not stat.alive
        or stat.started != before.started
    ):
        raise ProblemError(Code.INVALID, f"pid: process {pid} is not visible here.")
    if by.uid not in {0, uid}:
        owner = USER_NAMES.get(uid) or f"user {uid}"
        why = f"pid: process {pid} belongs to {owner}; only that user and root may name it."
        raise ProblemError(Code.FORBIDDEN, why)
    user = USER_NAMES.get(uid)
    return Caller(via=by.via, uid=uid, user=user, pid=pid, started=stat.started, level=by.level)


def _is_in_other_namespace(pid: int) -> bool:
    """Check whether a process is in a nested PID namespace: it has more than one PID."""
    return len(read_status(pid, "NSpid")) != 1


def _uid_of(pid: int) -> int | None:
    """Read the real user of a process; its folder in /proc may belong to root."""
    uids = read_status(pid, "Uid")
    return int(uids[0]) if uids else None
