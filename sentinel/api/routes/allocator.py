"""Promises a part of a GPU's memory to a process: had when it is free, undone when nobody hears."""

from __future__ import annotations

import time
from pathlib import Path

from sentinel.api.context import ApiContext
from sentinel.api.http.errors import ProblemError
from sentinel.api.state.memory_budget import memory_free
from sentinel.api.state.supervisor_link import accepted
from sentinel.host.procfs import read_stat
from sentinel.protocol.api_types import Code
from sentinel.protocol.caller import Caller
from sentinel.protocol.commands import Allocate, Confirm, Deallocate, Refusal
from sentinel.protocol.views import Allocation

#: How long a promise that was kept may take to be shown, in seconds.
_SHOWN_WITHIN = 2.0
#: The words of a line NSpid of a process with one PID, in our own namespace.
_ALONE = 2
_ENDED = "The allocation was ended before it was complete."


async def promise(
    context: ApiContext, by: Caller, *, name: str, gpu: str, size: int, wait: float
) -> Allocation:
    """Return memory that is promised, once it is free; nothing is promised where that fails.

    Args:
        context: The way to the supervisor.
        by: The process that it is for.
        name: Its id, which no other may have.
        gpu: The GPU's UUID.
        size: Bytes.
        wait: For how many seconds at most it is waited for.

    Raises:
        ProblemError: It was refused, is not free in time, or somebody has ended it meanwhile.
    """
    deadline = time.monotonic() + wait
    ours = False
    context.promising[name] += 1
    try:
        await context.channel.order(Allocate, by=by, id=name, gpu=gpu, size=size)
        ours = True  # before that, the id may be somebody else's, and is nothing to undo
        await memory_free(context.views, gpu, time.monotonic(), deadline)
        return await _kept(context, by, name)
    except BaseException:
        if ours:
            context.channel.tell(Deallocate, by=by, id=name)
        raise
    finally:
        context.promising[name] -= 1
        if not context.promising[name]:
            del context.promising[name]


def holder(by: Caller, pid: int | None) -> Caller:
    """Return the process that memory is for: the one that asks, or the one that it named.

    Raises:
        ProblemError: It named one that is not there, or is not its to name.
    """
    if by.via != "unix":
        if pid is None:
            return by
        why = "A client over TCP is no process of this host and can name none: leave pid out."
        raise ProblemError(Code.INVALID, why)
    if by.started is None:
        why = (
            "The process that asks cannot be seen from here, as in another container, so nobody"
            " could tell when it ends: ask over TCP, and give the memory back."
        )
        raise ProblemError(Code.INVALID, why)
    if pid is None or pid == by.pid:
        return by
    if _is_elsewhere(by.pid or 0):
        why = (
            f"pid: the process that asks is in another PID namespace, where {pid} is somebody else:"
            " leave pid out, and ask from the process that needs the memory."
        )
        raise ProblemError(Code.INVALID, why)
    before = read_stat(pid)
    uid = _user_of(pid)
    stat = read_stat(pid)
    if before is None or stat is None or uid is None or not stat.alive or stat != before:
        raise ProblemError(Code.INVALID, f"pid: no process {pid} can be seen from here.")
    if by.uid not in {0, uid}:
        why = f"pid: process {pid} is of user {uid}; only that user and root may name it."
        raise ProblemError(Code.FORBIDDEN, why)
    return Caller(via=by.via, uid=uid, pid=pid, started=stat.started)


def _is_elsewhere(pid: int) -> bool:
    """Return whether a process is in another PID namespace than ours: it has more than one PID."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    line = next((line for line in text.splitlines() if line.startswith("NSpid:")), "")
    return len(line.split()) != _ALONE


def _user_of(pid: int) -> int | None:
    """Return the real user of a process; its folder in /proc may be root's."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    line = next((line for line in text.splitlines() if line.startswith("Uid:")), "")
    return int(line.split()[1]) if line else None


async def _kept(context: ApiContext, by: Caller, name: str) -> Allocation:
    """Return the allocation of this id once it outlives this service.

    Raises:
        ProblemError: Somebody has ended it, or there is no answer.
    """
    answer = await context.channel.ask(Confirm, by=by, id=name, allocation=True)
    if answer.refused is Refusal.NOT_FOUND:
        raise ProblemError(Code.CONFLICT, _ENDED)
    accepted(answer)

    def shown() -> bool:
        given = context.views.allocation(name)
        return given is None or given.confirmed

    if not await context.views.until(shown, time.monotonic() + _SHOWN_WITHIN):
        raise ProblemError(Code.UNAVAILABLE, "The daemon does not show the allocation.")
    given = context.views.allocation(name)
    if given is None:
        raise ProblemError(Code.CONFLICT, _ENDED)
    return given
