"""Have a daemon run the plan of a burn-in, and record it in a folder."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, Any

from sentinel.burnin.checks.evidence import Findings
from sentinel.burnin.record import LAST, LOST
from sentinel.burnin.request import RunRequest, plan_of
from sentinel.burnin.resume import begun_with, check_settings, earlier_work
from sentinel.burnin.run_files import complete, new_run, prepare, reopen
from sentinel.burnin.run_folder import count_lines, last_moment
from sentinel.burnin.samples import CountersAtEnd, Sampler, Samples, measured, sample
from sentinel.burnin.since_boot import faults_since_boot
from sentinel.client.client import Client
from sentinel.client.event_stream import EventInfo, EventStream
from sentinel.config.expectation import parse_expectation
from sentinel.config.gpu_selection import gpus_of, present, select_gpus
from sentinel.config.model import SETTINGS, Config
from sentinel.config.plan import plan_toml
from sentinel.diagnostics.counters import CountersResult, read_counters
from sentinel.diagnostics.host_counters import read_host, read_pci_paths
from sentinel.diagnostics.kernel_log import KernelLog
from sentinel.errors import DriverUnavailableError, SentinelError
from sentinel.host.event_lines import json_lines
from sentinel.host.golden_store import locate
from sentinel.host.procfs import read_stat
from sentinel.host.regular_file import file_errors
from sentinel.host.verified_store import acknowledged_at, confirmed_faulty, known_gpus
from sentinel.protocol.api_types import Settings
from sentinel.protocol.commands import Given
from sentinel.protocol.gpu import Gpu, HeldGpu

# --- recording a run -------------------------------------------------------------------------

#: How long a daemon may take to replace its API process, and the pause between two attempts.
_RECONNECT_TIMEOUT_S = 60.0
_RECONNECT_EVERY_S = 0.2
#: Settings of what serves clients, and those that the plan replaces.
NOT_OF_A_RUN = ("api.", "access.", "metrics.", "history.", "notify.", "log.")
_REPLACED = ("workload", "util.", "power", "duty")


@contextmanager
def record_run(
    request: RunRequest,
    connected: Callable[[Sequence[str]], AbstractContextManager[Client]],
    on_start: Callable[[Client, str], None] = lambda *_: None,
    on_event: Callable[[EventInfo], None] = lambda _: None,
) -> Iterator[bool]:
    """Have a daemon run a plan, and record it until its end or until the daemon ends.

    Args:
        request: What to run.
        connected: Connects to the daemon, or starts one for these GPUs, until its block ends.
        on_start: Called with the client and the id of the run, once the daemon has begun.
        on_event: Called with each event of the host and of the GPUs, once it is recorded.

    Yields:
        Once everything is recorded, whether no process is stuck in the driver: the interpreter's
        own exit would wait for it. The folder counts as recorded at the end of the block.

    Raises:
        SentinelError: The daemon has refused, and nothing is recorded; or it cannot be reached.
    """
    folder, simulated, resumes = request.run_folder, request.simulation, request.plan is None
    before = read_counters(simulated)
    if before.driver_error is not None:
        raise DriverUnavailableError(f"no GPU can be read: {before.driver_error}")
    with ExitStack() as outer:
        wanted = _completed(request, before, outer)
        seconds = plan_of(wanted).seconds
        at_end = CountersAtEnd(lambda uuid: read_counters(simulated, [uuid]))
        with connected(wanted.gpus) as client, ExitStack() as stack:
            _prepare(client, request, wanted, before)
            events = folder.appended(folder.events)
            stack.callback(_close, events)
            samples = folder.appended(folder.samples)
            stack.callback(_close, samples)
            kernel = stack.enter_context(KernelLog(since=last_moment(folder) if resumes else None))
            stream = stack.enter_context(client.events())
            stream.open()  # before the start, so that no event is missed
            run = client.start_burnin(
                wanted.plan or "",
                wanted.gpus or None,
                fail_fast=wanted.fail_fast,
                bound=True,
                done=wanted.done,
            )
            stack.push(partial(_cancel_on_failure, client, run.id))
            if resumes:  # only now, since a refused run leaves its folder as it was
                present = _present_settings(client, request, wanted.gpus)
                reopen(folder, present, before, _plain(request.findings))
            on_start(client, run.id)
            write = Samples(json_lines(samples, {}), kernel, count_lines(folder.samples)).write
            sampler = Sampler(client, run.gpus, seconds, write)
            sampler.start()
            try:
                for event in until_end(client, stream, run.id):
                    if event.fields.get("gpu") not in {None, *run.gpus}:
                        continue
                    at_end.take(event.name, event.fields.get("gpu"))
                    if event.name == "burnin.measured":
                        write(measured(event.fields))
                    else:
                        _keep(event, events, folder.events)
                    on_event(event)
            finally:
                sampler.stop()
            # Reads the kernel's log once more. A file from which events were taken away has fewer.
            write(sample(LAST, time.monotonic(), fields={"event_count": folder.event_count()}))
            unread = kernel.error if simulated is None else "simulated GPUs have none"
        after = at_end.close(lambda: read_counters(simulated))
        complete(folder, after, unread, read_host(simulated))
        yield not (before.stuck or after.stuck)


def _completed(request: RunRequest, before: CountersResult, stack: ExitStack) -> RunRequest:
    """Lock the folder of a run; of one to go on with, add its plan and what was done of it.

    Args:
        request: What to run.
        before: The GPUs as they are now.
        stack: Releases the folder; that of a new run is removed if nothing was started.

    Raises:
        ConfigError: The folder has a run already, or one that cannot be resumed.
    """
    folder = request.run_folder
    if request.plan is not None:
        stack.enter_context(new_run(folder))
        return request
    stack.enter_context(folder.locked())  # first: another process may still add to it
    now = datetime.now().astimezone()
    plan, done = earlier_work(folder, now, before.counters, request.thresholds)
    began_so = any(value["key"] == "fail-fast" for value in begun_with(folder))
    return replace(
        request,
        plan=plan_toml(plan),
        gpus=tuple(done),
        done=done,
        fail_fast=request.fail_fast or began_so,
    )


def _prepare(
    client: Client, request: RunRequest, wanted: RunRequest, before: CountersResult
) -> None:
    """Write what a new run begins with, or check that the daemon can go on with the run.

    Raises:
        ConfigError: It cannot be written, or the work would be another.
    """
    settings = _present_settings(client, request, wanted.gpus)
    if request.plan is None:
        check_settings(request.run_folder, client.status().daemon.version, settings)
        return
    prepare(
        *(request.run_folder, plan_of(request), before, settings, _of_header(request)),
        simulated=request.simulated is not None,
        beside={**_selection(client, request, before), **_beside(request, before)},
    )


def _of_header(request: RunRequest) -> dict[str, Any]:
    """Collect what the header of a run has beside its plan; see ``prepare``."""
    thresholds = None if request.thresholds is None else asdict(request.thresholds)
    text, source = request.expectation, request.expected_by
    return {
        "confirmed_faulty": confirmed_faulty(Path(request.state)),
        "thresholds": thresholds,
        "expectation": {"source": source, "text": text} if text else None,
    }


def _beside(request: RunRequest, before: CountersResult) -> dict[str, Any]:
    """Collect what is recorded beside the counters before a run; see ``prepare``."""
    simulated, state = request.simulation, Path(request.state)
    text, faults = request.expectation, []
    counts = bool(text) and parse_expectation(text, request.expected_by).gpus is not None
    if simulated is None:
        faults = faults_since_boot(before.counters, acknowledged_at(state))
    return {
        "known": known_gpus(state) if counts else {},
        "host_before": asdict(read_host(simulated)),
        "pci_paths": read_pci_paths(simulated),
        "unacknowledged": faults,
        "findings": _plain(request.findings),
    }


def _plain(findings: Mapping[str, Findings]) -> dict[str, Any]:
    """Return what daemons know against GPUs as JSON values."""
    return {uuid: asdict(found) for uuid, found in findings.items()}


def _selection(client: Client, request: RunRequest, before: CountersResult) -> dict[str, Any]:
    """Return whether GPUs of the node are left out, and which of them against the selection."""
    status, gpus = client.status(), client.settings().get("gpus")
    named = {*request.gpus} - {"all"}
    held = status.daemon.held_elsewhere
    chosen = gpus is not None and set(gpus.text.split(",")) - {"all", ""}
    fewer = request.simulated is not None and len(status.gpus) + len(held) < len(before.counters)
    is_chosen = bool(named or chosen)
    return {
        "selected": is_chosen or fewer or status.daemon.visible_devices is not None,
        "ignored_devices": None if is_chosen else status.daemon.ignored_devices,
        "held_elsewhere": _wanted(request, held),
    }


def _wanted(request: RunRequest, held: Iterable[HeldGpu]) -> dict[str, str]:
    """Return the holders of the GPUs that a run was to test, too; one that is named is refused."""
    if request.gpus and "all" not in request.gpus:
        return {}
    return {gpu.uuid: gpu.holder for gpu in held}


def _present_settings(
    client: Client, request: RunRequest, selectors: Sequence[str]
) -> list[dict[str, Any]]:
    """List the daemon's settings for the GPUs of a run; see :func:`recorded_settings`.

    Raises:
        NoSuchGpuError: A selector matches no GPU, or several.
        GpuHeldError: A selector matches a GPU that is held elsewhere.
    """
    status = client.status()
    gpus = select_gpus(selectors, gpus_of(status.gpus), status.daemon.held_elsewhere)
    return recorded_settings(client.settings(), request, gpus)


def recorded_settings(
    settings: Settings, request: RunRequest, gpus: Sequence[Gpu]
) -> list[dict[str, Any]]:
    """List the settings of a run whose values differ from the defaults.

    Args:
        settings: Those of the daemon.
        request: What was asked for.
        gpus: The GPUs of the run; settings of others are left out.

    Returns:
        For each the ``key``, the ``value`` as it was written, its ``source``, such as ``--rearm``,
        and the ``gpu`` that it is for, as it was written; None for all.
    """
    found: list[dict[str, Any]] = [
        {"key": value.key, "value": value.text, "source": value.source, "gpu": value.gpu}
        for value in settings.settings
        if value.source not in {"default", "--gpus"}
        and not value.key.startswith((*NOT_OF_A_RUN, *_REPLACED))
        and (_differs(value) if value.gpu is None else present(value.gpu, gpus))
    ]
    asked = {
        "gpus": ",".join(request.gpus),
        "fail-fast": "on" if request.fail_fast else "",
        "strict": "on" if request.strict else "",
        "thresholds": "" if request.thresholds is None else request.thresholds.origin,
        "expect": request.expected_by,
    }
    for key, value in asked.items():
        if value:
            found = [setting for setting in found if setting["key"] != key]
            found.append({"key": key, "value": value, "source": f"--{key}", "gpu": None})
    return found


def _differs(value: Given) -> bool:
    """Compare a value with the default; a private daemon has the host's path of goldens."""
    if value.key == "goldens" and value.text == str(locate(None, os.environ)):
        return False
    setting = next(setting for setting in SETTINGS if setting.key == value.key)
    return bool(setting.form.parse(value.text) != getattr(Config(), setting.field))


def _cancel_on_failure(
    client: Client, run: str, kind: type[BaseException] | None, *_: object
) -> None:
    """Cancel a run whose record has failed: its work would prove nothing."""
    if kind is not None:
        cancel_run(client, run)


def cancel_run(client: Client, run: str, reason: str | None = None) -> None:
    """Cancel a run, unless it is over: the daemon may do another one by now."""
    with suppress(SentinelError):
        client.cancel_burnin(run, reason)


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
    while time.monotonic() < deadline and (stat := read_stat(pid)) is not None and stat.alive:
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


def _keep(event: EventInfo, file: IO[str], path: Path) -> None:
    """Write an event of the run or of the host.

    Raises:
        ConfigError: It cannot be written.
    """
    fields = dict(event.fields)
    if event.name == "lost":  # this client was too slow
        fields = {"event": LOST, "at": time.monotonic(), "events": fields["count"]}
    with file_errors(f"{path} cannot be written"):
        file.write(json.dumps(fields) + "\n")
        file.flush()


def _close(file: IO[str]) -> None:
    """Close a file; a line that it could not write was reported before."""
    with suppress(OSError):
        file.close()
