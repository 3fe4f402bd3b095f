"""Runs one workload on one GPU for some seconds, and gathers what it did meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from sentinel.core.observation import ProbeFacts
from sentinel.diagnostics.trial.measurement import Failure, Trial
from sentinel.diagnostics.trial.recorder import Listener, run_heard
from sentinel.errors import ExitCode
from sentinel.protocol.gpu import Gpu, Reading
from sentinel.protocol.stressor import ChildMessage, Failed, Note, Progress
from sentinel.supervisor.discovery import Options
from sentinel.supervisor.event_log import Sink

#: Whoever was seen to come is named in an event that follows, at the latest after so many seconds.
_SETTLED_WITHIN = 10.0


def try_workload(
    options: Options, seconds: float, sink_for: Callable[[Mapping[str, Gpu]], Sink]
) -> tuple[Trial, ExitCode, bool]:
    """Run the workload of ``options`` on one GPU for some seconds after it is ready.

    The trial ends early where the workload fails or the GPU is needed by somebody else.

    Args:
        options: What to run, on which GPUs; at most one of them is to be occupied.
        seconds: For how long.
        sink_for: Makes a sink that is told of the events meanwhile, given the GPUs by UUID.

    Returns:
        What was seen; the supervisor's exit code; and whether nothing of ours is stuck.

    Raises:
        SentinelError: As for :func:`sentinel.supervisor.bootstrap.supervise`.
    """
    listener = _Listener(options.config.workload, seconds)
    code, clean = run_heard(options, listener, sink_for)
    return listener.trial, code, clean


class _Listener(Listener):
    """Keeps how the workload went, too, from Ready until its time is over."""

    def __init__(self, workload: str, seconds: float) -> None:
        super().__init__(workload)
        self._seconds = seconds
        self._progress: list[Progress] = []
        self._note: str | None = None
        self._last_words: Failed | None = None
        self._readings: list[Reading] = []

    @property
    def trial(self) -> Trial:
        """All that was seen so far."""
        seen = super().trial
        failure = seen.failure
        if failure is None and self._last_words is not None and seen.newcomer is None:
            # It was asked to stop, and failed at that.
            failure = Failure(kind=self._last_words.kind.value, reason=self._last_words.reason)
        ended = self._ended_at if self._ended_at is not None else time.monotonic()
        ready = self._ready_at
        return replace(
            seen,
            ran=max(0.0, min(ended, self._over_at or ended) - ready) if ready is not None else 0.0,
            progress=tuple(self._progress),
            note=self._note,
            readings=tuple(self._readings),
            failure=failure,
        )

    def hear_probe(
        self, heard: tuple[ProbeFacts | None, dict[str, Reading]]
    ) -> tuple[ProbeFacts | None, dict[str, Reading]]:
        """Keep the readings of its GPU while it runs."""
        gpu = self._events.gpu
        reading = heard[1].get(gpu.uuid) if gpu is not None else None
        runs = self._ready_at is not None and self._ended_at is None and self._over_at is None
        if reading is not None and runs and reading.at > (self._ready_at or 0.0):
            self._readings.append(reading)
        return heard

    def _hear_message(self, message: ChildMessage) -> None:
        match message:
            case Progress():
                self._progress.append(message)
            case Note(text=text):
                self._note = text
            case Failed():
                self._last_words = message
            case _:
                super()._hear_message(message)

    def _why_done(self) -> str | None:
        now = time.monotonic()
        if self._ready_at is None or now - self._ready_at < self._seconds:
            return None
        waiting = self._ended_at is not None and now - self._ended_at < _SETTLED_WITHIN
        return None if waiting else "the time of the trial is over"
