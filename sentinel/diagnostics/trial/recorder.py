"""Run one workload on one GPU under a real supervisor, and record what all parts report."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from sentinel.core.observation import ChildFacts, ProbeFacts
from sentinel.core.step import Event
from sentinel.diagnostics.trial.measurement import Failure, Stop, Trial
from sentinel.errors import ExitCode
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.stressor import ChildMessage, Ready
from sentinel.supervisor.bootstrap import run_parts
from sentinel.supervisor.discovery import Options
from sentinel.supervisor.event_log import Sink
from sentinel.supervisor.ports import Interrupts, Parts, Probe, Spawner

#: How long to wait for an idle GPU: if one is known to be in use, since its last process may be
#: exiting, and if none has been read.
_IDLE_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 20.0

#: The last events about a stressor. One that cannot be killed has no exit to wait for.
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
    """Records messages, readings and events, from two threads with fields of their own.

    The loop's thread brings readings and messages, the event log's thread the events. The trial is
    over once a stressor exited or cannot be killed, no GPU was idle in time, a signal came, or
    :meth:`_why_done` returns a reason.

    Args:
        workload: The workload to run.

    Attributes:
        gpus: The selected GPUs by UUID; empty before discovery.
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
        """The measurements so far, without those of the work itself."""
        return replace(self._events, ready=self._ready, interrupted=self._interrupted)

    # --- the loop's thread ---

    def take_probe(self, found: ProbeFacts | None) -> ProbeFacts | None:
        """Record what the probe sent, and pass it on."""
        return found

    def take_children(self, found: dict[str, ChildFacts]) -> dict[str, ChildFacts]:
        """Record the messages and the exit of the stressor."""
        for facts in found.values():
            for message in facts.messages:
                self._take_message(message)
            if facts.exit is not None:
                self._ended_at = facts.exit.at
        return found

    def take_signals(self, found: tuple[str | None, bool]) -> tuple[str | None, bool]:
        """Pass on a signal, or the reason why the trial is over."""
        signal, at_once = found
        return self._over(signal), at_once

    def _take_message(self, message: ChildMessage) -> None:
        """Record one message of the stressor."""
        if isinstance(message, Ready):
            self._ready, self._ready_at = message, time.monotonic()

    def _over(self, signal: str | None) -> str | None:
        """Explain why the trial is over now, or return None; ``signal`` ends it early."""
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
            return "the stressor has exited"
        timeouts = _READ_TIMEOUT_S if self._events.waiting is None else _IDLE_TIMEOUT_S
        if self._events.gpu is None and looked >= timeouts:
            return "no GPU is idle"
        return self._why_done()

    @abstractmethod
    def _why_done(self) -> str | None:
        """Explain why the measurements are complete, or return None."""

    # --- the event log's thread ---

    def take_event(self, event: Event) -> None:
        """Record one event about the stressor or its GPU."""
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


def run_recorded(
    options: Options,
    listener: Listener,
    sink_for: Callable[[Mapping[str, Gpu]], Sink] | None = None,
) -> tuple[ExitCode, bool]:
    """Run a supervisor with real parts until ``listener`` is done.

    Args:
        options: The workload and the GPUs; at most one is occupied.
        listener: Records what the parts report.
        sink_for: Builds another sink of the events, given the GPUs by UUID.

    Returns:
        The supervisor's exit code, and whether nothing is stuck.

    Raises:
        SentinelError: As for :func:`sentinel.supervisor.bootstrap.supervise`.
    """

    def sink(gpus: Mapping[str, Gpu]) -> Sink:
        listener.gpus = gpus
        further = sink_for(gpus) if sink_for is not None else None

        def record(event: Event) -> None:
            listener.take_event(event)
            if further is not None:
                further(event)

        return record

    def around(parts: Parts) -> Parts:
        return replace(
            parts,
            probe=cast("Probe", Recorded(parts.probe, listener.take_probe)),
            spawner=cast("Spawner", Recorded(parts.spawner, listener.take_children)),
            interrupts=cast("Interrupts", Recorded(parts.interrupts, listener.take_signals)),
        )

    return run_parts(options, sink, around)


def _of_gpu(seen: Trial, name: str, fields: Mapping[str, Any]) -> Trial:
    """Update the measurements by an event about a GPU."""
    processes = _describe_processes(fields.get("processes", ()))
    match name:
        case "gpu.busy" | "gpu.unknown":
            waiting = f"{fields['reason']}{': ' if processes else ''}{', '.join(processes)}"
            processes = processes if seen.newcomer is not None else seen.processes
            return replace(seen, waiting=waiting, processes=processes)
        case "gpu.yielding":
            if fields["evidence"] == "computing":
                processes = processes or ("an unlisted process that computes",)
            return replace(seen, newcomer=fields["grown"], processes=processes)
        case "gpu.handed_over":
            return replace(seen, processes=seen.processes or processes)
        case "gpu.identity":
            return replace(seen, all_listed=fields["complete"])
        case _:
            return seen


def _of_stressor(seen: Trial, name: str, fields: Mapping[str, Any]) -> Trial:
    """Update the measurements by an event about the stressor."""
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


def _describe_processes(listed: Any) -> tuple[str, ...]:
    """Format processes for people."""
    return tuple(f"{one.get('name') or 'a process'} (pid {one['pid']})" for one in listed)


class Recorded:
    """A part with a recorder of what its ``collect`` returns.

    Args:
        part: The real part.
        record: Takes what its ``collect`` returned, and returns what the supervisor gets.
    """

    def __init__(self, part: Any, record: Callable[[Any], Any]) -> None:
        self._part = part
        self._record = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def collect(self) -> Any:
        """Collect from the real part, through the recorder."""
        return self._record(self._part.collect())
