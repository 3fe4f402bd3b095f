"""Run one workload on one GPU: a plan of one phase, done by a private daemon and recorded."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import psutil

from sentinel.burnin.checks.recorded_run import read_run
from sentinel.burnin.checks.workload_checks import HostUse, TrialEvidence
from sentinel.burnin.request import RunRequest
from sentinel.burnin.run import record_run
from sentinel.burnin.run_folder import RunFolder
from sentinel.client import Client, GpuStatus, connect
from sentinel.client.event_stream import EventInfo
from sentinel.client.hold import private_sentinel, temporary_folder
from sentinel.client.verbs import OnWait
from sentinel.config.build import build_config
from sentinel.config.model import SETTINGS
from sentinel.config.plan import Phase, Plan, plan_toml
from sentinel.config.sources import from_flags
from sentinel.diagnostics.survey import Survey, survey
from sentinel.errors import (
    AccessDeniedError,
    ConflictError,
    EndedEarlyError,
    IncompleteError,
    NotRunningError,
    SentinelError,
    TimedOutError,
)
from sentinel.host import simulation
from sentinel.protocol.gpu import Gpu

#: Settings of a trial: quicker than those of a daemon, because a user waits, and delays are what a
#: trial has to find. A warm GPU must not slow down the workload under test.
_SETTINGS = {"poll": "200ms", "rearm": "100ms", "status_every": "1s", "throttle.pace": "off"}

#: How long to wait for an idle GPU: if a process is known to use it, since that may be exiting, and
#: if it has not been read.
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

#: Signals that end a trial early; a second one ends it at once.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class TrialRequest:
    """What to run, and where."""

    workload: str
    #: How long the workload works after it is ready.
    seconds: float
    gpu: Gpu
    #: The number of simulated GPUs, or None for real ones.
    simulate: int | None
    #: Further settings, by key.
    settings: Mapping[str, str] = field(default_factory=dict)
    #: Whether a daemon that holds the GPU has reserved it for this process.
    lent: bool = False


def run_trial(
    request: TrialRequest, is_over: Callable[[EventInfo], bool] = lambda _: False
) -> tuple[TrialEvidence, bool]:
    """Run a workload until its time is over, it fails, or another process needs the GPU.

    Args:
        request: What to run, and where.
        is_over: Receives each event of the host and of the GPU; returns whether to end the trial.

    Returns:
        What was recorded, and whether no process is stuck in the driver.

    Raises:
        SentinelError: Nothing was started.
    """
    plan = Plan(
        name="trial",
        phases=(
            Phase(name="trial", workload=request.workload, seconds=request.seconds, checked=False),
        ),
        max_failures=1,
    )
    watcher = _Watcher(request.gpu.uuid, is_over)
    with temporary_folder() as (temporary, _), watcher.signals():
        folder = RunFolder(path=temporary / "run")
        run = RunRequest(
            folder=str(folder.path),
            plan=plan_toml(plan),
            gpus=(request.gpu.uuid,),
            state=str(temporary),
            simulated=None if request.simulate is None else str(simulation.default_folder()),
        )
        with record_run(run, partial(_daemon, request), watcher.begin, watcher.take) as clean:
            record = read_run(folder).records[request.gpu.uuid]
    evidence = TrialEvidence(
        record=record,
        host=watcher.host.result(),
        reported=watcher.reported,
        interrupted=watcher.interrupted,
    )
    return evidence, clean


@contextlib.contextmanager
def _daemon(request: TrialRequest, gpus: Sequence[str]) -> Iterator[Client]:
    """Start a private daemon for the trial, which ends with the block.

    The settings of the host do not apply: they decide when idle GPUs are occupied, and a trial is
    an explicit request.
    """
    given = from_flags({**_SETTINGS, **request.settings, "gpus": ",".join(gpus)})
    flags = ["--burnin-only", "--config", os.devnull]
    flags += [word for value in given for word in (value.source, value.text)]
    flags += [] if request.simulate is None else ["--simulate", str(request.simulate)]
    flags += ["--lent"] if request.lent else []
    variables = {setting.variable for setting in SETTINGS}
    environment = {name: text for name, text in os.environ.items() if name not in variables}
    with private_sentinel(flags, environment) as held:
        held.wait_ready()
        yield held.client


class _Watcher:
    """Ends a trial that cannot go on, and measures what its stressor takes of the host.

    Args:
        uuid: The GPU.
        is_over: Receives each event; returns whether the caller ends the trial.
    """

    def __init__(self, uuid: str, is_over: Callable[[EventInfo], bool]) -> None:
        self.host = HostMeter()
        #: The signal that has ended the trial.
        self.interrupted: str | None = None
        #: A signal that came before its start.
        self._early: str | None = None
        #: The failure that the stressor has reported.
        self.reported: Mapping[str, Any] | None = None
        self._uuid = uuid
        self._is_over = is_over
        self._client: Client | None = None
        self._began = 0.0
        self._started = False
        self._pid: int | None = None
        self._cancelled = False

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Take the signals that end a trial during a block.

        Raises:
            EndedEarlyError: One came before its start.
        """
        before = {number: signal.signal(number, self._end_early) for number in _SIGNALS}
        try:
            yield
        except KeyboardInterrupt:
            if self._early is None:
                raise
            raise EndedEarlyError(self._early) from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def begin(self, client: Client, _run: str) -> None:
        """Take the client of the daemon, which has begun; a signal ends the trial from now on."""
        self._client, self._began = client, time.monotonic()
        for number in _SIGNALS:
            signal.signal(number, self._interrupt)

    def take(self, event: EventInfo) -> None:
        """Take an event of the host or of the GPU."""
        name, fields = event.name, event.fields
        self._started = self._started or name == "stressor.starting"
        if name == "stressor.ready":
            self._pid = self._find_pid()
        elif name == "burnin.measured" and fields["kind"] == "Failed":
            self.reported = fields["values"]
        if self._pid is not None:
            self.host.sample(self._pid, time.monotonic())
        over = self._is_over(event) or name in _ENDS
        if over or (not self._started and self._waits_too_long(event)):
            self._pid = None
            self._cancel()

    def _waits_too_long(self, event: EventInfo) -> bool:
        """Check whether the GPU is not idle in time."""
        busy = event.name == "gpu.status" and event.fields["occupancy"] == "BUSY"
        limit = _IDLE_TIMEOUT_S if busy else _READ_TIMEOUT_S
        return time.monotonic() - self._began >= limit

    def _find_pid(self) -> int | None:
        with contextlib.suppress(SentinelError):
            gpus = self._client.status().gpus if self._client is not None else ()
            return next((gpu.pid for gpu in gpus if gpu.uuid == self._uuid), None)
        return None

    def _end_early(self, number: int, _frame: FrameType | None) -> None:
        self._early = signal.Signals(number).name
        raise KeyboardInterrupt  # nothing on the way takes it for an error of a request

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        self.interrupted = signal.Signals(number).name
        signal.signal(number, signal.default_int_handler)
        threading.Thread(target=self._cancel, daemon=True).start()

    def _cancel(self) -> None:
        """End the plan; it may have ended at this moment."""
        if self._client is not None and not self._cancelled:
            self._cancelled = True
            with contextlib.suppress(SentinelError):
                self._client.cancel_burnin()


class HostMeter:
    """Measures one process between its first and its last sample, and all its threads.

    A process that has ended keeps its last sample; one that started other programs counts alone.
    """

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None
        self._last: tuple[float, float] | None = None
        self._memory = 0

    def sample(self, pid: int, now: float) -> None:
        """Sample the process ``pid`` at the monotonic time ``now``."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
            self._last = (now, times.user + times.system)
            self._first = self._first or self._last
            self._memory = max(self._memory, memory.rss)

    def result(self) -> HostUse | None:
        """Compute the use of the host; None without two samples."""
        if self._first is None or self._last is None or self._last[0] <= self._first[0]:
            return None
        cores = (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])
        return HostUse(cores=max(0.0, cores), memory=self._memory)


# --- the GPU ---------------------------------------------------------------------------------


@contextlib.contextmanager
def usable_gpu(
    selector: str | None,
    simulate: int | None,
    reason: str,
    wait: float,
    reporter: Callable[[Client], OnWait | None],
    *,
    any_idle: bool = False,
) -> Iterator[tuple[Gpu, bool]]:
    """Choose a GPU, and reserve it at the daemon that holds it, if there is one.

    The reservation is bound to this process, so that it ends even if the process is killed.

    Args:
        selector: The GPU, or None for any; the first one is taken.
        simulate: The number of simulated GPUs, or None for real ones.
        reason: The purpose, shown to other users.
        wait: Seconds until the GPU must be available and free.
        reporter: Builds what reports the place in the queue of the daemon, from its client.
        any_idle: Prefer one that is idle, or that the daemon can free at once, to the first.

    Yields:
        The GPU, and whether a daemon has reserved it for this process.

    Raises:
        IncompleteError: The daemon cannot free the GPU in time.
        SentinelError: No GPU can be selected, or the daemon refuses.
    """
    given = from_flags({"gpus": selector} if selector is not None else {})
    rows = survey(build_config(given), simulate=simulate)
    client = connect(simulated=None if simulate is None else simulation.default_folder())
    managed = _managed(client, simulated=simulate is not None)

    def is_available(row: Survey) -> bool:
        status = managed.get(row.gpu.uuid)
        if status is None:  # the daemon neither holds nor locks it
            return row.verdict.allowed
        return status.occupancy == "IDLE" and status.reservation is None

    gpu = next(filter(is_available, rows), rows[0]).gpu if any_idle else rows[0].gpu
    if gpu.uuid not in managed:
        yield gpu, False
        return
    try:
        made = client.reserve(
            (gpu.uuid,), reason=reason, wait=wait, bound=True, on_wait=reporter(client)
        )
    except (ConflictError, TimedOutError) as error:
        raise IncompleteError(
            f"the daemon cannot free the GPU: {error.what}",
            "Choose another GPU, or wait longer: --wait. Nothing was started.",
        ) from error
    try:
        yield gpu, True
    finally:
        with contextlib.suppress(SentinelError):  # it ends with this process anyway
            made.end()


def _managed(client: Client, *, simulated: bool) -> dict[str, GpuStatus]:
    """List the GPUs, real or simulated, that the daemon manages; none without a daemon."""
    try:
        status = client.status()
    except (NotRunningError, AccessDeniedError):  # the locks tell who holds a GPU
        return {}
    return {gpu.uuid: gpu for gpu in status.gpus if status.daemon.simulated == simulated}
