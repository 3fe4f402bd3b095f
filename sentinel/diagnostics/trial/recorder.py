"""Runs one workload on one GPU with a real supervisor, and listens to all of its parts."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from sentinel.core.actions import Event
from sentinel.core.observation import ChildFacts, ProbeFacts
from sentinel.diagnostics.trial.measurement import Failure, Stop, Trial
from sentinel.errors import ExitCode
from sentinel.protocol.gpu import Gpu, Reading
from sentinel.protocol.stressor import ChildMessage, Ready
from sentinel.supervisor.bootstrap import run_parts
from sentinel.supervisor.discovery import Options
from sentinel.supervisor.event_log import Sink
from sentinel.supervisor.ports import Interrupts, Parts, Probe, Spawner

#: How long a GPU may take to be seen idle before it is given up, in seconds: one that was said to
#: be in use, whose last user may just be leaving, and one of which nothing is known.
_FREE_WITHIN = 5.0
_READ_WITHIN = 20.0

#: What is said last of a stressor. One that cannot be killed has no end that could be waited for.
_ENDS = frozenset(
    {
        "gpu.handed_over",
        "stressor.failed",
        "stressor.fatal",
        "stressor.stopped",
        "stressor.unkillable",
    }
)


class Listener(ABC):
    """Takes in what becomes known, from two threads, each with fields of its own.

    The loop's thread brings readings and a child's messages, the journal's the events. It is over
    once a stressor ended or cannot be ended, no GPU was idle in time, a signal came, or
    :meth:`_why_done` says so.

    Args:
        workload: What is run, as it was asked for.

    Attributes:
        gpus: The GPUs that are cared for, by UUID; empty before they are found.
    """

    def __init__(self, workload: str) -> None:
        self.gpus: Mapping[str, Gpu] = {}
        self._events = Trial(workload=workload)
        self._began: float | None = None
        self._ready: Ready | None = None
        self._ready_at: float | None = None
        self._ended_at: float | None = None
        self._interrupted: str | None = None
        self._over_at: float | None = None
        self._settled = False

    @property
    def trial(self) -> Trial:
        """All that was seen so far, without how it worked meanwhile."""
        return replace(self._events, ready=self._ready, interrupted=self._interrupted)

    # --- the loop's thread ---

    def hear_probe(
        self, heard: tuple[ProbeFacts | None, dict[str, Reading]]
    ) -> tuple[ProbeFacts | None, dict[str, Reading]]:
        """Return what the probe said, as it is."""
        return heard

    def hear_children(self, heard: dict[str, ChildFacts]) -> dict[str, ChildFacts]:
        """Keep what the stressor says, and when it ended."""
        for facts in heard.values():
            for message in facts.messages:
                self._hear_message(message)
            if facts.exit is not None:
                self._ended_at = facts.exit.at
        return heard

    def hear_signals(self, heard: tuple[str | None, bool]) -> tuple[str | None, bool]:
        """Return a signal that came, or else that it is over, if it is."""
        signal, at_once = heard
        return self._over(signal), at_once

    def _hear_message(self, message: ChildMessage) -> None:
        """Keep what matters of one message of the stressor."""
        if isinstance(message, Ready):
            self._ready, self._ready_at = message, time.monotonic()

    def _over(self, signal: str | None) -> str | None:
        """Return why it is over, if it is now; ``signal`` is what would end it early."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        why = signal
        if signal is not None:
            self._interrupted = self._interrupted or signal
        elif self._over_at is None:
            why = self._why_over(now - self._began)
        if why is not None and self._over_at is None:
            self._over_at = now
        return why

    def _why_over(self, looked: float) -> str | None:
        if self._settled:
            return "the stressor has come to an end"
        timeouts = _READ_WITHIN if self._events.waiting is None else _FREE_WITHIN
        if self._events.gpu is None and looked >= timeouts:
            return "no GPU is idle"
        return self._why_done()

    @abstractmethod
    def _why_done(self) -> str | None:
        """Return why all was heard, if it was."""

    # --- the journal's thread ---

    def hear_event(self, event: Event) -> None:
        """Keep what the supervisor says of the stressor and of its GPU."""
        seen = self._events
        if seen.gpu is not None and event.gpu not in {None, seen.gpu.uuid}:
            return
        if event.name == "stressor.starting" and event.gpu is not None:
            seen = replace(seen, gpu=seen.gpu or self.gpus[event.gpu])
        elif event.name.startswith("gpu."):
            seen = _of_gpu(seen, event.name, event.fields)
        elif event.name.startswith("stressor."):
            seen = _of_stressor(seen, event.name, event.fields)
        self._events = seen
        self._settled = self._settled or event.name in _ENDS


def run_heard(
    options: Options,
    listener: Listener,
    sink_for: Callable[[Mapping[str, Gpu]], Sink] | None = None,
) -> tuple[ExitCode, bool]:
    """Run a supervisor with real parts until ``listener`` has heard enough.

    Args:
        options: What to run, on which GPUs; at most one of them is to be occupied.
        listener: Takes in what becomes known.
        sink_for: Makes a sink that is told of the events, too, given the GPUs by UUID.

    Returns:
        The supervisor's exit code, and whether nothing of ours is stuck.

    Raises:
        SentinelError: As for :func:`sentinel.supervisor.bootstrap.supervise`.
    """

    def sink(gpus: Mapping[str, Gpu]) -> Sink:
        listener.gpus = gpus
        further = sink_for(gpus) if sink_for is not None else None

        def hear(event: Event) -> None:
            listener.hear_event(event)
            if further is not None:
                further(event)

        return hear

    def around(parts: Parts) -> Parts:
        return replace(
            parts,
            probe=cast("Probe", _Overheard(parts.probe, listener.hear_probe)),
            spawner=cast("Spawner", _Overheard(parts.spawner, listener.hear_children)),
            interrupts=cast("Interrupts", _Overheard(parts.interrupts, listener.hear_signals)),
        )

    return run_parts(options, sink, around)


def _of_gpu(seen: Trial, name: str, fields: Mapping[str, Any]) -> Trial:
    """Return what is known once this was said of its GPU, or of one that it waits for."""
    people = _people(fields.get("processes", ()))
    match name:
        case "gpu.busy" | "gpu.unknown":
            waiting = f"{fields['reason']}{': ' if people else ''}{', '.join(people)}"
            people = people if seen.newcomer is not None else seen.people
            return replace(seen, waiting=waiting, people=people)
        case "gpu.yielding":
            if fields["evidence"] == "computing":
                people = people or ("somebody who computes and is not listed",)
            return replace(seen, newcomer=fields["grown"], people=people)
        case "gpu.handed_over":
            return replace(seen, people=seen.people or people)
        case "gpu.identity":
            return replace(seen, all_listed=fields["complete"])
        case _:
            return seen


def _of_stressor(seen: Trial, name: str, fields: Mapping[str, Any]) -> Trial:
    """Return what is known once this was said of the stressor."""
    match name:
        case "stressor.ready":
            return replace(seen, start=fields["start_s"])
        case "stressor.finding":
            return replace(seen, findings=seen.findings + 1)
        case "stressor.failed" | "stressor.fatal":
            failure = Failure(kind=fields["kind"], reason=fields["reason"])
            return replace(seen, failure=failure)
        case "stressor.stopped" if fields["cause"] == "shutdown":
            return replace(seen, stop=Stop(after=fields["stop_s"], killed=fields["killed"]))
        case "stressor.unkillable":
            return replace(seen, unkillable=True)
        case _:
            return seen


def _people(by: Any) -> tuple[str, ...]:
    """Return who is meant, for people."""
    return tuple(f"{one.get('name') or 'a process'} (pid {one['pid']})" for one in by)


class _Overheard:
    """A part of which what ``collect`` returns is heard, too; all else is as it is.

    Args:
        part: The real one.
        hear: Takes what its ``collect`` returned, and returns what the supervisor gets.
    """

    def __init__(self, part: Any, hear: Callable[[Any], Any]) -> None:
        self._part = part
        self._hear = hear

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def collect(self) -> Any:
        """Return what became known since the last call."""
        return self._hear(self._part.collect())
