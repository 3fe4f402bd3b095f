"""Lists the registered workloads, each with its options, without importing any of them here.

Only metadata of the installed packages is read here. What the workloads say of themselves is asked
of a process that imports them; where it hangs or crashes, the workload that it was importing is
known, and another process goes on with the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint

from sentinel.config.workload_spec import registered
from sentinel.diagnostics.one_shot import (
    Crashed,
    Ended,
    Failure,
    Garbage,
    NotStarted,
    Silent,
    run_one_shot,
)
from sentinel.errors import WireError
from sentinel.protocol.inspection import Described, Importing, WorkloadOption
from sentinel.stressor import describe

#: What the process that imports gets: no GPU to make a context on, and one thread.
_SURROUNDINGS = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, kw_only=True)
class Timeouts:
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


def list_workloads(timeouts: Timeouts | None = None) -> tuple[tuple[Listed, ...], bool]:
    """Return every registered workload, by name, and whether a process survived its SIGKILL.

    Args:
        timeouts: How long the process that imports them may take; by default, long.
    """
    entries = registered()
    places = [f"{entry.module}:{entry.attr}" for entry in entries]
    said, stuck = describe_places(places, timeouts or Timeouts())
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


def describe_places(places: Sequence[str], timeouts: Timeouts) -> tuple[list[Described], bool]:
    """Return what the workload at each ``module:attribute`` says of itself, or what is wrong.

    The worst case is one patience for each of them. Besides, it is returned whether a process
    survived its SIGKILL: the interpreter's own exit would wait for it, maybe for ever.
    """
    said: dict[int, Described] = {}
    stuck = False
    while missing := [(number, place) for number, place in enumerate(places) if number not in said]:
        notes = _Notes(dict(missing), timeouts, said)
        heard = run_one_shot(
            describe.run, tuple(missing), _SURROUNDINGS, kinds=(Importing, Described), notes=notes
        )
        stuck = stuck or heard.stuck
        if heard.failure is None:
            continue
        fault = _in_words(heard.failure, notes.importing)
        # Before it imports one of them, a lister cannot say which is to blame: none can be listed.
        blamed = [notes.importing] if notes.importing is not None else list(dict(missing))
        for number in blamed:
            said.setdefault(number, Described(number=number, error=fault))
    return [said[number] for number in range(len(places))], stuck


class _Notes:
    """What one lister says.

    Args:
        places: What it is to import, by number.
        timeouts: How long it may take.
        said: Where what the workloads say of themselves is kept, beside what other listers told.

    Attributes:
        importing: The number of what it imported last.
    """

    def __init__(
        self, places: Mapping[int, str], timeouts: Timeouts, said: dict[int, Described]
    ) -> None:
        self.importing: int | None = None
        self._places = places
        self._patience = timeouts
        self._said = said
        self._opened = False

    def timeouts(self) -> float:
        """Return how long the import may take, or that of torch before all."""
        return self._patience.each if self._opened else self._patience.opening

    def take(self, message: object) -> bool:
        """Note what it imports, or what came of that; return whether nothing is missing.

        Raises:
            WireError: It is of a workload that this lister was not told of.
        """
        self._opened = True
        match message:
            case Importing(number=number) if number in self._places:
                self.importing = number
            case Described(number=number) if number in self._places:
                self._said.setdefault(number, message)
            case _:
                raise WireError(str(message))
        return self._said.keys() >= self._places.keys()


def _in_words(failure: Failure, importing: int | None) -> str:
    """Return what is wrong with what was being imported."""
    match failure:
        case NotStarted(error=error):
            return f"the process that imports workloads cannot be started: {error}"
        case Garbage(what=what):
            return f"its import sent garbage: {what}"
        case Silent(seconds=seconds):
            what = "torch was not imported" if importing is None else "its import did not return"
            return f"{what} within {seconds:g} s"
        case Ended(code=code):
            return f"its import ended the process, with exit code {code}"
        case Crashed(signal=signal):
            return f"its import crashed the process ({signal})"
