"""Run one workload on one GPU for some seconds, and measure it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from sentinel.core.observation import ChildFacts, ProbeFacts
from sentinel.diagnostics.trial.host_use import HostMeter
from sentinel.diagnostics.trial.measurement import Failure, Trial
from sentinel.diagnostics.trial.recorder import Listener, run_recorded
from sentinel.errors import ExitCode
from sentinel.protocol.gpu import Gpu, Reading
from sentinel.protocol.stressor import ChildMessage, Failed, Note, Progress
from sentinel.supervisor.discovery import Options
from sentinel.supervisor.event_log import Sink

#: A later event names the newcomer, at most so many seconds after the yield.
_NEWCOMER_TIMEOUT_S = 10.0


def try_workload(
    options: Options, seconds: float, sink_for: Callable[[Mapping[str, Gpu]], Sink]
) -> tuple[Trial, ExitCode, bool]:
    """Run the workload of ``options`` on one GPU for some seconds after it is ready.

    The trial ends early if the workload fails or another process needs the GPU.

    Args:
        options: The workload and the GPUs; at most one is occupied.
        seconds: How long it runs.
        sink_for: Builds a sink of the events, given the GPUs by UUID.

    Returns:
        The measurements, the supervisor's exit code, and whether nothing is stuck.

    Raises:
        SentinelError: As for :func:`sentinel.supervisor.bootstrap.supervise`.
    """
    listener = _Listener(options.config.workload, seconds)
    code, clean = run_recorded(options, listener, sink_for)
    return listener.trial, code, clean


class _Listener(Listener):
    """Records the work of the workload, too, from Ready until the time is over."""

    def __init__(self, workload: str, seconds: float) -> None:
        super().__init__(workload)
        self._seconds = seconds
        self._progress: list[Progress] = []
        self._note: str | None = None
        self._failed: Failed | None = None
        self._readings: list[Reading] = []
        self._pid: int | None = None
        self._host = HostMeter()

    @property
    def trial(self) -> Trial:
        """All measurements so far."""
        seen = super().trial
        failure = seen.failure
        if failure is None and self._failed is not None and seen.newcomer is None:
            # It was asked to stop, and failed then.
            failure = Failure(kind=self._failed.kind.value, reason=self._failed.reason)
        ended = self._ended_at if self._ended_at is not None else time.monotonic()
        ready = self._ready_at
        return replace(
            seen,
            ran=max(0.0, min(ended, self._over_at or ended) - ready) if ready is not None else 0.0,
            progress=tuple(self._progress),
            note=self._note,
            readings=tuple(self._readings),
            host=self._host.result(),
            failure=failure,
        )

    def take_probe(self, found: ProbeFacts | None) -> ProbeFacts | None:
        """Record the readings of the GPU while the workload runs."""
        gpu = self._events.gpu
        reading = found.readings.get(gpu.uuid) if found is not None and gpu is not None else None
        runs = self._ready_at is not None and self._ended_at is None and self._over_at is None
        if reading is not None and runs and reading.at > (self._ready_at or 0.0):
            self._readings.append(reading)
            if self._pid is not None:
                self._host.sample(self._pid, time.monotonic())
        return found

    def take_children(self, found: dict[str, ChildFacts]) -> dict[str, ChildFacts]:
        """Record the PID of the stressor, too."""
        for facts in found.values():
            if facts.child is not None:
                self._pid = facts.child.pid
        return super().take_children(found)

    def _take_message(self, message: ChildMessage) -> None:
        match message:
            case Progress():
                self._progress.append(message)
            case Note(text=text):
                self._note = text
            case Failed():
                self._failed = message
            case _:
                super()._take_message(message)

    def _why_done(self) -> str | None:
        now = time.monotonic()
        if self._ready_at is None or now - self._ready_at < self._seconds:
            return None
        waiting = self._ended_at is not None and now - self._ended_at < _NEWCOMER_TIMEOUT_S
        return None if waiting else "the time of the trial is over"
