"""Lists the registered workloads, each with its options, without importing any of them here.

Only metadata of the installed packages is read here. What the workloads say of themselves is asked
of a process that imports them; where it hangs or crashes, the workload that it was importing is
known, and another process goes on with the others.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from multiprocessing.connection import wait as wait_for_files

from sentinel import wire
from sentinel.errors import WireError
from sentinel.inquiries import Described, Importing, WorkloadOption
from sentinel.spawning import Child
from sentinel.stressor import lister
from sentinel.stressor.loading import registered

__all__ = ["Listed", "Patience", "describe_places", "list_workloads"]

#: Datagrams taken at once; the rest is still there at the next turn.
_AT_ONCE = 64
#: How long a killed process may take to be seen gone, in seconds.
_GONE_WITHIN = 1.0

#: What the process that imports gets: no GPU to make a context on, and one thread.
_SURROUNDINGS = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long the lister may take, in seconds.

    ``opening`` is for its start, in which it imports torch: 14 s from a cold disk, and longer from
    a network. ``each`` is for the import of one workload.
    """

    opening: float = 120.0
    each: float = 30.0


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One registered workload. ``error`` is why it cannot be used, then nothing else is known.

    ``package`` and ``version`` are of the distribution that registers it, ``place`` is its
    ``module:attribute`` there.
    """

    name: str
    place: str
    package: str | None
    version: str | None
    summary: str = ""
    options: tuple[WorkloadOption, ...] = ()
    error: str | None = None


def list_workloads(patience: Patience | None = None) -> tuple[tuple[Listed, ...], bool]:
    """Return every registered workload, by name, and whether a process survived its SIGKILL.

    Args:
        patience: How long the process that imports them may take; by default, long.
    """
    entries = registered()
    places = [f"{entry.module}:{entry.attr}" for entry in entries]
    said, stuck = describe_places(places, patience or Patience())
    names = [entry.name for entry in entries]
    listed = (
        _listed(entry, words, twice=names.count(entry.name) > 1)
        for entry, words in zip(entries, said, strict=True)
    )
    return tuple(listed), stuck


def _listed(entry: EntryPoint, words: Described, *, twice: bool) -> Listed:
    error = words.error
    if error is None and twice:
        error = f"its name is registered twice; it can be used as {entry.value}"
    return Listed(
        name=entry.name,
        place=entry.value,
        package=entry.dist.name if entry.dist else None,
        version=entry.dist.version if entry.dist else None,
        summary=words.summary,
        options=words.options,
        error=error,
    )


def describe_places(places: Sequence[str], patience: Patience) -> tuple[list[Described], bool]:
    """Return what the workload at each ``module:attribute`` says of itself, or what is wrong.

    The worst case is one patience for each of them. Besides, it is returned whether a process
    survived its SIGKILL: the interpreter's own exit would wait for it, maybe for ever.
    """
    said: dict[int, Described] = {}
    stuck = False
    while missing := [(number, place) for number, place in enumerate(places) if number not in said]:
        importing, fault, survived = _listen(missing, patience, said)
        stuck = stuck or survived
        # Before it imports one of them, a lister cannot say which is to blame: none can be listed.
        blamed = [importing] if importing is not None else [number for number, _ in missing]
        for number in blamed:
            said.setdefault(number, Described(number=number, error=fault))
    return [said[number] for number in range(len(places))], stuck


def _listen(
    places: Sequence[tuple[int, str]], patience: Patience, said: dict[int, Described]
) -> tuple[int | None, str, bool]:
    """Hear one lister out; return what it was importing, how it ended, and whether it is stuck."""
    try:
        child = Child(lister.run, tuple(places), (), _SURROUNDINGS)
    except OSError as error:
        return None, f"the process that imports workloads cannot be started: {error}", False
    try:
        importing, fault = _hear(child, patience, dict(places), said)
    finally:
        child.kill()
        wait_for_files([child.pidfd], _GONE_WITHIN)
        code = child.reap() if child.ended() else None
    return importing, fault or _end(code or 0), code is None


def _hear(
    child: Child, patience: Patience, places: Mapping[int, str], said: dict[int, Described]
) -> tuple[int | None, str]:
    """Note what a lister says; return what it imported last, and what is wrong but its own end."""
    importing: int | None = None
    since, longest = time.monotonic(), patience.opening
    while True:
        wait_for_files(child.files(), max(0.0, since + longest - time.monotonic()))
        ended = child.ended()  # looked at first, so that its last words are all there
        datagrams = child.receive(_AT_ONCE)
        for datagram in datagrams:
            since, longest = time.monotonic(), patience.each
            try:
                message = wire.decode(datagram, (Importing, Described))
            except WireError as error:
                return importing, f"its import sent garbage: {error.what}"
            match message:
                case Importing(number=number) if number in places:
                    importing = number
                case Described(number=number) if number in places:
                    said.setdefault(number, message)
                case _:
                    return importing, f"its import sent garbage: {message}"
        if len(said.keys() & places.keys()) == len(places) or (ended and not datagrams):
            return importing, ""
        if time.monotonic() - since >= longest:
            what = "torch was not imported" if importing is None else "its import did not return"
            return importing, f"{what} within {longest:g} s"


def _end(code: int) -> str:
    """Return how the import ended the process, in words."""
    if code >= 0:
        return f"its import ended the process, with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its import crashed the process ({name})"
