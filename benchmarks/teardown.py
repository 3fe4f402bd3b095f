"""Kill a process on a GPU, and measure how its memory comes back."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from benchmarks.host_gpus import Card, Host
from benchmarks.results import Record

#: A fall of the used memory by so many bytes shows the first that are free.
_FREED_BYTES = 2**20
#: What a newcomer's context may hold while the rest is free.
_CONTEXT_BYTES = 2**30
_WATCH_S = 5.0
_SAMPLE_EVERY_S = 0.002
_READ_EVERY_S = 0.001
#: The threads after the kill are described by steps of so many milliseconds.
_STEP_MS = 10
_TIMES = ("first_free_s", "all_free_s", "exit_s")
_DESCRIPTIONS = 24
_STACK = 12


def kill_and_watch(
    host: Host, card: Card, pid: int, *, empty: int, held: int, newcomer: bool
) -> Record:
    """Kill a process group, and measure how its memory comes back.

    Args:
        host: The GPUs.
        card: The GPU.
        pid: The leader of the group, a child of this process that has not been reaped.
        empty: Used bytes of the GPU without the group.
        held: Used bytes just before, read while no context was created: NVML waits for that.
        newcomer: Whether another process creates a context at the same time.

    Returns:
        The seconds from SIGKILL to the first free byte, to all free memory and to the exit, or None
        where it was not seen; and what the threads did before and after the kill.
    """
    before, after, ended = threads_of(pid), Counter[str](), threading.Event()
    pidfd = os.pidfd_open(pid)
    exited = select.poll()
    exited.register(pidfd, select.POLLIN)
    killed_at = time.monotonic()
    os.killpg(pid, signal.SIGKILL)
    sampler = threading.Thread(target=_sample, args=(pid, killed_at, after, ended))
    sampler.start()
    target = empty + (_CONTEXT_BYTES if newcomer else _FREED_BYTES)
    peak, longest_s, times = held, 0.0, dict[str, float]()
    while len(times) < len(_TIMES) and time.monotonic() < killed_at + _WATCH_S:
        asked_at = time.monotonic()
        used = host.used(card.uuid)
        now = time.monotonic()
        longest_s, peak = max(longest_s, now - asked_at), max(peak, used)
        for name, seen in (
            ("first_free_s", used <= peak - _FREED_BYTES),
            ("all_free_s", used <= target),
            ("exit_s", exited.poll(0)),
        ):
            if seen:
                times.setdefault(name, now - killed_at)
        if "exit_s" in times:
            ended.set()
        time.sleep(_READ_EVERY_S)
    ended.set()
    sampler.join()
    os.close(pidfd)
    return {
        **dict.fromkeys(_TIMES),
        **times,
        "held_mib": held - empty >> 20,
        "longest_read_s": longest_s,
        "threads_before": before,
        "threads_after": dict(after.most_common(_DESCRIPTIONS)),
    }


def _sample(pid: int, since: float, seen: Counter[str], ended: threading.Event) -> None:
    """Count what the threads do after the kill, by steps of time."""
    while not ended.wait(_SAMPLE_EVERY_S):
        step = int((time.monotonic() - since) * 1e3) // _STEP_MS * _STEP_MS
        seen.update(f"{step} ms {text}" for text in threads_of(pid))


def threads_of(pid: int) -> list[str]:
    """Describe each thread: name, state, wait channel, system call and stack in the kernel.

    What the kernel does not show to this user is left out.
    """
    found = []
    with suppress(OSError):
        for folder in sorted(Path(f"/proc/{pid}/task").iterdir()):
            state = _read(folder / "stat").rpartition(")")[2].split()[:1]
            call = _read(folder / "syscall").split()[:3]
            stack = _read(folder / "stack").splitlines()[:_STACK]
            names = [line.partition("] ")[2].partition("+")[0] for line in stack]
            parts = [_read(folder / "comm"), *state, _read(folder / "wchan"), *call, *names]
            found.append(" ".join(part for part in parts if part))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
