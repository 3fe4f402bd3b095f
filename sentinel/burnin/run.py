"""Run a burn-in plan on this host's GPUs under a supervisor, and keep everything in a folder."""

from __future__ import annotations

import os
import platform
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from sentinel.burnin.checks.counters_at_end import CountersAtEnd
from sentinel.burnin.checks.thresholds import Thresholds
from sentinel.burnin.records.recorder import LAST, XID, Recorder, sample
from sentinel.burnin.records.run_folder import (
    RunFolder,
    drop_torn_line,
    plan_object,
    read_object,
)
from sentinel.burnin.records.xid_event import parse
from sentinel.burnin.resume import earlier_work
from sentinel.config.plan import Plan
from sentinel.core.actions import Event
from sentinel.core.burnin_state import Burnin
from sentinel.diagnostics.counters import CountersResult, read_counters
from sentinel.diagnostics.counters_process import read_counters_apart
from sentinel.diagnostics.kernel_log import KernelLog
from sentinel.errors import DriverUnavailableError, ExitCode
from sentinel.host.gpus import simulation
from sentinel.host.node_name import node_name
from sentinel.host.processes.procfs import boot_id
from sentinel.protocol.gpu import Gpu
from sentinel.protocol.version import __version__
from sentinel.supervisor.bootstrap import run_parts
from sentinel.supervisor.discovery import Options
from sentinel.supervisor.event_log import EventLog, Sink, json_lines

#: How long the last samples may take to be written, in seconds.
_FLUSH_TIMEOUT_S = 10.0
#: How often the status of each GPU is recorded; a terminal may show it more often.
STATUS_EVERY_S = 30.0
_PERIODIC = {"gpu.status", "burnin.progress"}
#: A status may come earlier by as much.
_TOLERANCE_S = 0.5
#: How long a terminal without a reader may delay the end.
_SCREEN_TIMEOUT_S = 2.0


def run_plan(  # noqa: PLR0913 - what a run is made of
    options: Options,
    plan: Plan | None,
    folder: RunFolder,
    sink_for: Callable[[Mapping[str, Gpu]], Sink],
    *,
    fail_fast: bool = False,
    settings: Sequence[Mapping[str, Any]] = (),
    thresholds: Thresholds = Thresholds(),  # noqa: B008 - frozen
    judge: Callable[[], None] = lambda: None,
) -> tuple[ExitCode, bool]:
    """Run a plan on every selected GPU until each has done it, a signal comes or ``--for`` is over.

    Args:
        options: The selection of GPUs and the settings; the plan names the workloads.
        plan: What to do, or None to go on with the run of the folder.
        folder: Where everything is recorded; that of a new run is created here.
        sink_for: Builds the sink of the events for people, given the GPUs by UUID.
        fail_fast: Whether a GPU does no more after its first error.
        settings: What to record of the settings; see :func:`recorded_settings`.
        thresholds: By which a run to go on with has failed or not.
        judge: Called once everything is recorded; until its end, the folder counts as recorded.

    Returns:
        The supervisor's exit code, and whether nothing is stuck; see
        :func:`sentinel.supervisor.bootstrap.leave`.

    Raises:
        SentinelError: Nothing was started.
    """
    simulated = None
    if options.simulate is not None:
        simulated = simulation.default_folder()
        simulation.Registry.create(simulated, options.simulate)
    before = read_counters(simulated)
    if before.driver_error is not None:
        raise DriverUnavailableError(f"no GPU can be read: {before.driver_error}")
    burnins: Mapping[str, Burnin] = {}
    with ExitStack() as stack:
        if goes_on := plan is None:
            stack.enter_context(folder.locked())  # first: another process may still add to it
            now = datetime.now().astimezone()
            plan, burnins = earlier_work(folder, now, before.counters, thresholds)
            options = replace(options, config=replace(options.config, gpus=tuple(burnins)))
        else:
            stack.enter_context(new_run(folder))
            prepare(
                *(folder, plan, before, settings),
                simulated=options.simulate is not None,
                selected=_is_selection(options, before),
            )
        config = replace(
            options.config, plan=plan, fail_fast=fail_fast, workload=plan.phases[0].workload
        )
        events = stack.enter_context(folder.events.open("a"))
        samples = stack.enter_context(folder.samples.open("a"))

        screens: list[EventLog] = []
        at_end = CountersAtEnd(lambda uuid: read_counters_apart(simulated, uuid))

        def sink(gpus: Mapping[str, Gpu]) -> Sink:
            if goes_on:  # only now, since a refused run leaves its folder as it was
                reopen(folder, settings)
            keep, screen = thinned(json_lines(events, gpus)), EventLog([sink_for(gpus)])
            screens.append(screen)

            def write(event: Event) -> None:
                keep(event)
                at_end.take(event.name, event.gpu)
                screen.publish([event])  # a terminal may block, or be gone

            return write

        kernel = stack.enter_context(KernelLog())
        log = EventLog([with_xids(json_lines(samples, {}), kernel)])
        for number in (signal.SIGINT, signal.SIGTERM):
            # The supervisor has handlers of its own; after it, the report is still to be written.
            signal.signal(number, signal.SIG_IGN)
        recorder = Recorder(log, plan.seconds)
        code, clean = run_parts(
            replace(options, config=config, burnins=burnins), sink, recorder.around
        )
        recorder.finish()
        log.publish([sample(LAST, time.monotonic())])  # reads the kernel's log once more
        clean = log.close(_FLUSH_TIMEOUT_S) and clean
        for one in screens:
            clean = one.close(_SCREEN_TIMEOUT_S) and clean
        unread = kernel.error if simulated is None else "the kernel logs none of simulated GPUs"
        after = at_end.close(lambda: read_counters(simulated))
        complete(folder, after, unread)
        judge()
    return code, clean and not (before.stuck or after.stuck)


def _is_selection(options: Options, before: CountersResult) -> bool:
    """Check whether GPUs of the node may be left out on purpose."""
    fewer = options.simulate is not None and options.simulate < len(before.counters)
    named = set(options.config.gpus) - {"all"}
    return fewer or bool(named) or "CUDA_VISIBLE_DEVICES" in os.environ


def thinned(write: Sink) -> Sink:
    """Write of the events that repeat the status of a GPU one in STATUS_EVERY_S seconds."""
    written: dict[tuple[str, str | None], float] = {}

    def write_some(event: Event) -> None:
        if event.name in _PERIODIC:
            last = written.get((event.name, event.gpu), float("-inf"))
            if event.at - last < STATUS_EVERY_S - _TOLERANCE_S:
                return
            written[event.name, event.gpu] = event.at
        write(event)

    return write_some


@contextmanager
def new_run(folder: RunFolder) -> Iterator[None]:
    """Create and lock the folder of a new run, and remove it if nothing was started.

    Raises:
        ConfigError: It cannot be created, or has a run already.
    """
    folder.create()
    with ExitStack() as stack:
        stack.callback(folder.remove_if_empty)
        stack.enter_context(folder.locked())
        yield


def prepare(
    folder: RunFolder,
    plan: Plan,
    before: CountersResult,
    settings: Sequence[Mapping[str, Any]] | None = None,
    *,
    simulated: bool,
    selected: bool,
) -> None:
    """Write the header of a new run, and the counters before it.

    Args:
        folder: The folder of the run.
        plan: What is run.
        before: The counters of all GPUs.
        settings: What to record of the settings, or None if they are those of a daemon.
        simulated: Whether the GPUs are simulated.
        selected: Whether GPUs were selected, so that others of the node are none of the run's.

    Raises:
        ConfigError: They cannot be written.
    """
    _write_header(folder, plan, before, settings, simulated=simulated)
    counters = [asdict(one) for one in before.counters]
    found = {"before": counters, "pci_devices": before.pci_devices, "selected": selected}
    folder.write(folder.counters, found)


def complete(folder: RunFolder, after: CountersResult, unread: str | None) -> None:
    """Add the counters after a run, and why the kernel's log was not read, or None."""
    first = read_object(folder.counters)
    folder.write(
        folder.counters,
        {
            **first,
            "after": [asdict(one) for one in after.counters],
            "driver_error": after.driver_error,
            "kernel_log_error": first.get("kernel_log_error") or unread,
        },
    )


def reopen(folder: RunFolder, settings: Sequence[Mapping[str, Any]] | None = None) -> None:
    """Prepare the folder of a run for its resumption; it may be of a run that was killed.

    Args:
        folder: The folder of the run.
        settings: What to record of the settings, or None if they are those of a daemon.
    """
    _mend(folder)
    header = read_object(folder.header)
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    given = None if settings is None else list(settings)
    resumed = [*header.get("resumed", ()), {"started": started, "settings": given}]
    folder.write(folder.header, {**header, "resumed": resumed})


def _mend(folder: RunFolder) -> None:
    """Drop what was not written completely, and what says how the run ended.

    The counters after the former part are not those after this one, which may be killed, too.
    """
    for path in (folder.events, folder.samples):
        drop_torn_line(path)
    counters = read_object(folder.counters)
    unread = counters.get("kernel_log_error")
    if "after" not in counters:
        unread = unread or "a part of the run was cut off"
    before = ("before", "pci_devices", "selected")
    kept = {name: counters[name] for name in before if name in counters}
    folder.write(folder.counters, kept | ({"kernel_log_error": unread} if unread else {}))


def with_xids(write: Sink, kernel: KernelLog) -> Sink:
    """Write each sample, and before it the XIDs that the kernel has logged since the last one."""

    def write_both(event: Event) -> None:
        for record in kernel.read():
            xid = parse(record.text, record.at)
            if xid is not None:
                try:
                    write(sample(XID, xid.at, fields=vars(xid)))
                except (OSError, ValueError):
                    kernel.error = "an XID could not be recorded"
                    raise
        write(event)

    return write_both


def new_folder(state: Path, plan: Plan) -> RunFolder:
    """Name the folder of a new run: its time and its plan."""
    now = datetime.now().astimezone()
    return RunFolder(path=state / "runs" / f"{now:%Y%m%d-%H%M%S}-{plan.name}")


def _write_header(
    folder: RunFolder,
    plan: Plan,
    before: CountersResult,
    settings: Sequence[Mapping[str, Any]] | None,
    *,
    simulated: bool,
) -> None:
    """Record what is run, where and with what."""
    drivers = sorted({one.driver for one in before.counters if one.driver})
    folder.write(
        folder.header,
        {
            "id": folder.path.name,
            "plan": plan_object(plan),
            "tool": "sentinel",
            "version": __version__,
            "boot": boot_id(),
            "started": datetime.now().astimezone().isoformat(timespec="seconds"),
            "simulated": simulated,
            "settings": None if settings is None else list(settings),
            "resumed": [],
            "node": {
                "hostname": node_name(),
                "machine_id": _machine_id(),
                "kernel": platform.release(),
                "python": platform.python_version(),
                "driver": drivers[0] if drivers else None,
                "uid": os.getuid(),
            },
        },
    )


def _machine_id() -> str | None:
    """Read the identity of this host, which systemd keeps; None without one."""
    try:
        return Path("/etc/machine-id").read_text().strip() or None
    except OSError:
        return None
