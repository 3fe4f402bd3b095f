"""Record a burn-in that a daemon runs: ask it for the run, and keep what it reports in a folder."""

from __future__ import annotations

import json
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, Any

from sentinel.burnin.checks.counters_at_end import CountersAtEnd
from sentinel.burnin.checks.thresholds import Thresholds
from sentinel.burnin.records.record import LOST
from sentinel.burnin.records.recorder import (
    CHECKSUM,
    END,
    LAST,
    LINK,
    TELEMETRY,
    TELEMETRY_FIELDS,
    WORK,
    WORK_FIELDS,
    interval,
    sample,
)
from sentinel.burnin.records.run_folder import RunFolder
from sentinel.burnin.resume import earlier_work
from sentinel.burnin.run import complete, new_run, prepare, reopen, with_xids
from sentinel.client.client import Client
from sentinel.client.event_stream import EventStream
from sentinel.client.types import EventInfo
from sentinel.config.plan import parse_plan, plan_toml
from sentinel.core.actions import Event
from sentinel.diagnostics.counters import read_counters
from sentinel.diagnostics.counters_process import read_counters_apart
from sentinel.diagnostics.kernel_log import KernelLog
from sentinel.errors import DriverUnavailableError, SentinelError
from sentinel.host.daemons.daemon_lookup import locate
from sentinel.host.gpus import simulation
from sentinel.protocol.api_types import BurninProgress, GpuStatus
from sentinel.protocol.phase_work import EarlierWork
from sentinel.supervisor.event_log import Sink, json_lines

#: The events of the daemon itself that belong to a run.
_OF_THE_RUN = ("burnin.run_started", "burnin.run_ended")
#: The samples of what stressors measure, by the kind of the event.
MEASURED = {"LinkMeasured": LINK, "ReferenceChecksum": CHECKSUM}
#: How often a daemon reads telemetry, in seconds.
_TELEMETRY_S = 1.0
#: How long a thread may take to end, in seconds.
_END_TIMEOUT_S = 5.0
#: How long a daemon may take to replace its API process, and the pause between two attempts.
_RECONNECT_TIMEOUT_S = 60.0
_RECONNECT_EVERY_S = 0.2


def record_run(  # noqa: PLR0913 - what a run is made of
    client: Client,
    folder: RunFolder,
    text: str | None,
    *,
    gpus: Sequence[str] = (),
    fail_fast: bool = False,
    on_start: Callable[[], None] = lambda: None,
    thresholds: Thresholds = Thresholds(),  # noqa: B008 - frozen
    judge: Callable[[], None] = lambda: None,
) -> None:
    """Have a daemon run a plan, and record it until its end or until the daemon ends.

    Args:
        client: The client of the daemon.
        folder: Where everything is recorded; that of a new run is created here.
        text: The plan as TOML, or None to go on with the run of the folder.
        gpus: The selected GPUs; the default is all of the daemon's, or those of a resumed run.
        fail_fast: A GPU on which an error was found does no more of the plan.
        on_start: Called once the daemon has begun.
        thresholds: By which a run to go on with has failed or not.
        judge: Called once everything is recorded; until its end, the folder counts as recorded.

    Raises:
        SentinelError: The daemon has refused, and nothing is recorded; or it cannot be reached.
    """
    done: Mapping[str, EarlierWork] = {}
    simulated = _simulation(client)
    before = read_counters(simulated)
    if before.driver_error is not None:
        raise DriverUnavailableError(f"no GPU can be read: {before.driver_error}")
    with ExitStack() as outer:
        if goes_on := text is None:
            outer.enter_context(folder.locked())  # first: another process may still add to it
            now = datetime.now().astimezone()
            plan, burnins = earlier_work(folder, now, before.counters, thresholds)
            done = {
                uuid: EarlierWork(phase=one.phase, work=one.current)
                for uuid, one in burnins.items()
            }
            text, gpus = plan_toml(plan), tuple(done)
        else:
            plan = parse_plan(tomllib.loads(text), "the plan")
            outer.enter_context(new_run(folder))
            selected = bool(gpus) or _has_selection(client)
            prepare(folder, plan, before, simulated=simulated is not None, selected=selected)
        with ExitStack() as stack:
            events = stack.enter_context(folder.events.open("a"))
            samples = stack.enter_context(folder.samples.open("a"))
            kernel = stack.enter_context(KernelLog())
            stream = stack.enter_context(client.events())
            stream.open()  # before the start, so that no event is missed
            run = client.start_burnin(text, gpus, fail_fast=fail_fast, bound=True, done=done)
            if goes_on:  # only now, since a refused run leaves its folder as it was
                reopen(folder)
            stack.push(partial(_cancel_on_failure, client, run.id))
            on_start()
            write = Samples(with_xids(json_lines(samples, {}), kernel)).write
            every = max(_TELEMETRY_S, interval(plan.seconds))
            sampler = Sampler(client, run.gpus, every, write)
            sampler.start()
            at_end = CountersAtEnd(lambda uuid: read_counters_apart(simulated, uuid))
            try:
                for event in until_end(client, stream, run.id):
                    if event.fields.get("gpu") in run.gpus:
                        at_end.take(event.name, event.fields["gpu"])
                    if event.name != "burnin.measured":
                        _keep(event, run.gpus, events)
                    elif event.fields["gpu"] in run.gpus:
                        write(_measured(event.fields))
            finally:
                sampler.stop()
            write(sample(LAST, time.monotonic()))  # reads the kernel's log once more
            unread = kernel.error if simulated is None else "simulated GPUs have none"
        complete(folder, at_end.close(lambda: read_counters(simulated)), unread)
        judge()


def _has_selection(client: Client) -> bool:
    """Check whether a daemon leaves GPUs of the node out on purpose."""
    named = client.settings().get("gpus")
    chosen = named is not None and named.source != "default"
    return chosen or client.status().daemon.visible_devices is not None


def _simulation(client: Client) -> Path | None:
    """Find the folder of the daemon's simulated GPUs, or None if they are real.

    Raises:
        SentinelError: The daemon does not answer.
    """
    if not client.status().daemon.simulated:
        return None
    return locate(client.address.socket).simulated or simulation.default_folder()


def _cancel_on_failure(
    client: Client, run: str, kind: type[BaseException] | None, *_: object
) -> None:
    """Cancel a run whose record has failed: its work would prove nothing."""
    if kind is not None:
        with suppress(SentinelError):
            if _goes_on(client, run):
                client.cancel_burnin()


def until_end(client: Client, stream: EventStream, run: str) -> Iterator[EventInfo]:
    """Yield the events of a daemon until a run or the daemon ends.

    A daemon replaces its API process if that fails. Then its events go on in a new stream, and an
    event ``lost`` counts those between.

    Args:
        client: The client of the daemon.
        stream: Its events, open.
        run: The id of the run.
    """
    pid, daemon, last = client.status().daemon.pid, stream.daemon, stream.newest
    while True:
        with suppress(SentinelError), stream:
            for event in stream:
                yield event
                last = last if event.id is None else event.id
                if event.name == "burnin.run_ended" and event.fields.get("id") == run:
                    return
                if event.name == "lost" and not _goes_on(client, run):
                    return  # its end may be among them
        again = _reconnected(client, last, daemon, pid)
        if again is None:
            return  # the daemon is gone: what it has done of the plan is recorded
        stream = again
        with suppress(SentinelError):
            if not _goes_on(client, run):
                yield EventInfo(id=None, name="lost", fields={"count": 1})
                return


def _reconnected(
    client: Client, last: int | None, daemon: str | None, pid: int
) -> EventStream | None:
    """Follow the same daemon again, or return None if it is gone."""
    deadline = time.monotonic() + _RECONNECT_TIMEOUT_S
    while time.monotonic() < deadline and Path(f"/proc/{pid}").exists():
        with suppress(SentinelError):
            stream = client.events(last, daemon).open()
            if stream.daemon == daemon:
                return stream
            stream.close()
            return None
        time.sleep(_RECONNECT_EVERY_S)
    return None


def _goes_on(client: Client, run: str) -> bool:
    """Check whether the daemon still does a run.

    Raises:
        SentinelError: The daemon does not answer.
    """
    current = client.status().daemon.burnin
    return current is not None and current.id == run


class Samples:
    """Writes samples from several threads, and records how many could not be written.

    Args:
        write: Takes the samples.
    """

    def __init__(self, write: Sink) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._dropped = 0

    def write(self, event: Event) -> None:
        """Write a sample; one that cannot be written is counted in the next one that can."""
        with self._lock:
            try:
                if self._dropped:
                    self._write(sample(LOST, event.at, fields={"events": self._dropped}))
                    self._dropped = 0
                self._write(event)
            except (OSError, ValueError):
                self._dropped += 1


def _measured(fields: Mapping[str, Any]) -> Event:
    """Convert an event about what a stressor has measured into a sample."""
    return sample(MEASURED[fields["kind"]], fields["at"], fields["gpu"], fields["values"])


def _keep(event: EventInfo, gpus: Sequence[str], file: IO[str]) -> None:
    """Write an event if it is of the run."""
    fields = dict(event.fields)
    if event.name == "lost":  # this client was too slow
        fields = {"event": "log.dropped", "at": time.monotonic(), "events": fields["count"]}
    elif fields.get("gpu") not in gpus and event.name not in _OF_THE_RUN:
        return
    file.write(json.dumps(fields) + "\n")
    file.flush()


class Sampler:
    """A thread that records the readings and the work of GPUs from the daemon's status.

    Args:
        client: The client of the daemon.
        gpus: The UUIDs of the GPUs.
        every: The seconds between two samples.
        write: Takes the samples.
    """

    def __init__(
        self, client: Client, gpus: Sequence[str], every: float, write: Callable[[Event], None]
    ) -> None:
        self._client = client
        self._gpus = gpus
        self._every = every
        self._write = write
        self._last: dict[str, GpuStatus] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._record, name="samples", daemon=True)

    def start(self) -> None:
        """Start to record."""
        self._thread.start()

    def stop(self) -> None:
        """Record no more."""
        self._stopping.set()
        self._thread.join(_END_TIMEOUT_S)

    def _record(self) -> None:
        while not self._stopping.wait(self._every):
            try:
                gpus = self._client.status().gpus
            except SentinelError:
                continue  # the stream of events tells whether the daemon is gone
            now = time.monotonic()
            for gpu in gpus:
                if gpu.uuid in self._gpus:
                    for one in samples_of(self._last.get(gpu.uuid), gpu, now):
                        self._write(one)
                    self._last[gpu.uuid] = gpu


def samples_of(before: GpuStatus | None, gpu: GpuStatus, now: float) -> Iterator[Event]:
    """Yield what a status adds to the one before: readings, work, and the end of a stressor.

    Args:
        before: The last status of the same GPU, or None.
        gpu: The status.
        now: The time of it.
    """
    if gpu.pid is not None and gpu.telemetry is not None and gpu.read_s is not None:
        fields = {
            "temperature_c": gpu.temperature_c,
            "power_w": gpu.power_w,
            "sm_clock_mhz": gpu.sm_clock_mhz,
            **{name: getattr(gpu.telemetry, name) for name in TELEMETRY_FIELDS},
        }
        yield sample(TELEMETRY, now - gpu.read_s, gpu.uuid, fields)
    if before is None:
        return
    work = _work(before.burnin, gpu.burnin)
    if work is not None:
        yield sample(WORK, now, gpu.uuid, work)
    if before.pid is not None and before.pid != gpu.pid:
        yield sample(END, now, gpu.uuid, {"pid": before.pid})


def _work(before: BurninProgress | None, after: BurninProgress | None) -> dict[str, float] | None:
    """Compute the work between two states of one phase; of two phases, it belongs to neither."""
    if before is None or after is None or before.number != after.number:
        return None
    work = {name: getattr(after, name) - getattr(before, name) for name in WORK_FIELDS}
    return work if work["seconds"] > 0 else None
