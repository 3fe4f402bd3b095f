"""Follow a burn-in on a terminal, show how far it is, and cancel it.

A process of its own records the run. These commands only follow what that process writes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click

from sentinel.burnin.formats import text_lines as report_lines
from sentinel.burnin.record import STARTED
from sentinel.burnin.run import cancel_run
from sentinel.burnin.run_folder import RunFolder, find_run, lines
from sentinel.burnin.verdict import Verdict, exit_code
from sentinel.cli.daemon.burnin_bars import burnin_bars
from sentinel.cli.display import output
from sentinel.cli.display.log_lines import log_line
from sentinel.cli.display.log_reader import follow
from sentinel.cli.options import command_options as options
from sentinel.cli.options import value_completion
from sentinel.client import Client, Status, connect
from sentinel.errors import ConfigError, ExitCode, NotRunningError, SentinelError
from sentinel.host.daemon_lookup import find_shared, simulated_folder
from sentinel.host.paths import SOCKET_VARIABLE
from sentinel.host.registry import DaemonRecord, records_folder, running_burnins
from sentinel.protocol.api_types import GpuStatus
from sentinel.units import format_duration

#: All lines of a file of events, which has fewer.
_ALL_LINES = 10_000_000
#: The events that a terminal shows by its bars alone.
_PERIODIC = {"gpu.status", "burnin.progress"}
#: How often a terminal shows the progress, in seconds.
_SHOW_EVERY_S = 1.0


#: Adds ``verbose``: whether a terminal gets a line for each event.
verbose_option = click.option(
    "--verbose", "-v", is_flag=True, help="On a terminal, print a line for each event, too."
)
PROGRESS = output.Table(
    ("GPU", "PHASE", "DONE", "TO DO", "RESULTS", "WRONG", "TEMP", "POWER", "STATE"),
    right=(2, 3, 4, 5, 6, 7),
)


def print_report(report: Mapping[str, Any], folder: RunFolder, *, as_json: bool) -> None:
    """Print a report, and where it is."""
    if as_json:
        output.print_json(report)
        return
    text = output.fit_report("\n".join(report_lines(report)))
    print(f"\n{text}\n\nreports: {folder.path}")
    sys.stdout.flush()


@click.command("status", short_help="Show how far burn-ins are.")
@output.color_option
@options.asks_daemon
def status(client: Client) -> options.Printed:
    """Show how far the daemon's burn-in is on each GPU, and which burn-ins run without it."""
    others = running_burnins(records_folder(os.environ, os.getuid()))
    try:
        shown = client.status()
    except NotRunningError as error:
        if not others:
            raise _no_run(error) from None
        shown = None
    return options.Printed(
        json={
            "burnin": shown.json["daemon"].get("burnin") if shown else None,
            "gpus": {gpu["uuid"]: gpu.get("burnin") for gpu in shown.json["gpus"]} if shown else {},
            "without_daemon": [{"pid": other.pid, "run": other.run} for other in others],
        },
        lines=_progress_lines(shown, others),
    )


def _progress_lines(shown: Status | None, others: Sequence[DaemonRecord]) -> Iterator[str]:
    """Yield the burn-ins without the daemon, and the progress of its own or of its plan."""
    for other in others:
        yield f"{other}\nTo follow it: sentinel burnin attach {shlex.quote(str(other.run))}"
        yield "To end it: sentinel burnin cancel, or Ctrl+C in its terminal"
    if shown is None:
        return
    run = shown.daemon.burnin
    gpus = [gpu for gpu in shown.gpus if (gpu.burnin if run is None else gpu.uuid in run.gpus)]
    if not gpus:
        yield from () if others else ("no burn-in runs",)
        return
    if run is not None:
        yield f"{run.plan}, since {run.since:%Y-%m-%d %H:%M}"
    else:
        plans = sorted({gpu.burnin.plan for gpu in gpus if gpu.burnin is not None})
        yield f"{', '.join(plans)}, again and again: the daemon was started with --plan"
    yield from PROGRESS.lines(map(progress_row, gpus))


@click.command("attach", short_help="Follow a run, and print its report.")
@click.argument("run", required=False, shell_complete=value_completion.runs)
@output.color_option
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.option("--simulated", is_flag=True, help="Look in the state directory of simulated GPUs.")
@verbose_option
def attach(run: str | None, as_json: bool, simulated: bool, verbose: bool) -> int:
    """Follow a run, by default the last one, and print its report at its end.

    RUN is its folder, or its name in the state directory. Ctrl+C ends this command alone.
    """
    simulation = simulated_folder(chosen=simulated)
    folder = RunFolder(path=find_run(find_shared(simulation), run))
    client = connect(simulated=simulation)
    if run is None:
        _check_last(client, folder)
    return Following(folder, client, verbose=verbose).to_report(as_json=as_json)


def _check_last(client: Client, folder: RunFolder) -> None:
    """Refuse the last run of the state directory if the daemon does another one.

    Its verdict would be taken for that of the run in progress, which has a folder of its own.

    Raises:
        ConfigError: It is another one.
    """
    try:
        current = client.status().daemon.burnin
    except SentinelError:
        return
    if current is not None and _id_of(folder) != current.id:
        raise ConfigError(
            f"the daemon's burn-in {current.plan} is recorded in another folder than {folder.path}",
            "Name it: sentinel burnin attach DIR",
        )


def _id_of(folder: RunFolder) -> str | None:
    """Find the id that the daemon has given to a run at its last start, or None."""
    found = None
    with contextlib.suppress(ConfigError, LookupError, TypeError):  # a file of another kind
        for event in lines(folder.events):
            found = str(event["id"]) if event["event"] == STARTED else found
    return found


@click.command("cancel", short_help="End a burn-in; its report shows what was done.")
@click.argument("run", required=False, shell_complete=value_completion.runs)
@options.asks_daemon
def cancel(client: Client, run: str | None) -> options.Printed:
    """End the daemon's burn-in, or the only one without it; its report shows what was done.

    With RUN, its folder or its name in the state directory, no other one is ended.
    """
    simulation = simulated_folder(chosen=click.get_current_context().params["simulated"])
    id_ = None
    if run is not None:
        folder = RunFolder(path=find_run(find_shared(simulation), run))
        id_ = _id_of(folder)
        if id_ is None:
            raise ConfigError(f"{folder.path}: the run has not begun")
    try:
        return options.outcome(client.cancel_burnin(id_))
    except SentinelError as error:
        if error.code not in {"not_running", "not_found"}:
            raise
        other = _only_other(error, simulation)
    return options.outcome(connect(other).cancel_burnin(id_))


def _only_other(error: SentinelError, simulation: Path | None) -> str:
    """Find the socket of the only burn-in without the daemon, of those that a command may mean.

    Args:
        error: Why the daemon has none; it is raised if there is no other, or a daemon was named.
        simulation: The folder of the simulated GPUs that are meant, or None.

    Raises:
        ConfigError: There are several, or it has no socket.
    """
    others = running_burnins(records_folder(os.environ, os.getuid()))
    if simulation is not None:
        others = [other for other in others if other.simulated == str(simulation.absolute())]
    if not others or _is_daemon_named():
        raise _no_run(error)
    if len(others) == 1 and others[0].burnin_socket is not None:
        return others[0].burnin_socket
    raise ConfigError(
        "these burn-ins run without a daemon:" + "".join(f"\n  {other}" for other in others),
        "End one by Ctrl+C in its terminal, or by SIGTERM to its command.",
    )


def _is_daemon_named() -> bool:
    given = click.get_current_context().params
    return bool(given["socket"] or given["over_tcp"] or os.environ.get(SOCKET_VARIABLE))


def _no_run(error: SentinelError) -> SentinelError:
    """Return the error of a command for a burn-in that needs no daemon, if none was named."""
    if error.code != "not_running" or _is_daemon_named():
        return error
    is_cancel = click.get_current_context().info_name == "cancel"
    remedy = "" if is_cancel else "Begin one: sentinel burnin"
    return NotRunningError("no burn-in runs; one that has just begun may not be listed", remedy)


def progress_row(gpu: GpuStatus) -> tuple[str, ...]:
    """Build the row of a GPU in a burn-in."""
    progress = gpu.burnin
    if progress is None:
        return (str(gpu.index), *("" for _ in PROGRESS.header[2:]), "done")
    done = ""
    if progress.quota_passes:
        done = f"{progress.passes} of {progress.quota_passes}"
    if progress.quota_s:
        spent, quota = round(progress.done_s), round(progress.quota_s)
        done = f"{format_duration(spent)} of {format_duration(quota)}"
    return (
        str(gpu.index),
        f"{progress.number} of {progress.phases} {progress.phase}",
        done,
        format_duration(left_s) if (left_s := round(progress.left_s)) else "",
        f"{progress.checks:,}",
        f"{progress.errors:,}",
        "" if gpu.temperature_c is None else f"{gpu.temperature_c} C",
        "" if gpu.power_w is None else f"{gpu.power_w:.0f} W",
        progress.ended or ("done" if progress.over else progress.waiting or "counts"),
    )


# --- following -------------------------------------------------------------------------------


class _EndedError(Exception):
    """The run is over, and all of its events are read."""


class Following:
    """Prints what a run records, until it is over; a terminal that is gone does not end that.

    Args:
        folder: The run.
        client: The client of the daemon, for the table on a terminal.
        recorder: The process that records the run, if this command has started it.
        run: The id of the run, if this command has started it: Ctrl+C then cancels the run.
            Otherwise, Ctrl+C only ends this.
        known: The number of recorded events not to print.
        is_private: Whether the daemon ends with this command.
        verbose: Whether a terminal gets a line for each event above the bars.
    """

    def __init__(
        self,
        folder: RunFolder,
        client: Client,
        recorder: subprocess.Popen[bytes] | None = None,
        *,
        run: str | None = None,
        known: int = 0,
        is_private: bool = False,
        verbose: bool = False,
    ) -> None:
        self._folder = folder
        self._known = known
        self._client = client
        self._recorder = recorder
        self._is_private = is_private
        self._verbose = verbose
        #: The run that Ctrl+C cancels.
        self._run = run
        self._ended = False
        self._shown_at = 0.0

    def to_report(self, *, as_json: bool) -> int:
        """Follow the run, and print its report; return the exit code of its verdict.

        Args:
            as_json: Print the report as JSON, and the events to standard error.

        Raises:
            ConfigError: There is no report, since the process that recorded the run has failed.
        """
        screen = output.LiveTable(sys.stderr if as_json else sys.stdout, PROGRESS)
        while True:
            try:
                self._print_events(screen)
                break
            except KeyboardInterrupt:
                if self._run is None:
                    return self._leave()
                _tell("\ncancelling; Ctrl+C again ends this command without its report")
                cancel_run(self._client, self._run)
                self._run = None
        report, code = self._report()
        with contextlib.suppress(OSError):
            print_report(report, self._folder, as_json=as_json)
        return code

    def _leave(self) -> int:
        """End this command before the run."""
        how = "the burn-in goes on; to end it: sentinel burnin cancel"
        _tell(f"\n{'the burn-in ends without this command' if self._is_private else how}")
        return int(ExitCode.INTERRUPTED)

    def _report(self) -> tuple[dict[str, Any], int]:
        """Read the report, and the exit code of the run.

        Raises:
            ConfigError: There is none, since the process that recorded the run has failed.
        """
        said, ended = b"", None
        if self._recorder is not None and self._recorder.stdout is not None:
            with self._recorder.stdout as answers:
                said = answers.read()
            ended = self._recorder.wait()
        file = self._folder.report
        with contextlib.suppress(OSError, ValueError):
            report: dict[str, Any] = json.loads(file.read_text())
            code = int(exit_code(Verdict(report["verdict"]), strict=bool(report.get("strict"))))
            if ended in {None, code, ExitCode.UNKILLABLE}:
                return report, code if ended is None else ended
        with contextlib.suppress(SentinelError):  # without a record, its work would prove nothing
            run = self._client.status().daemon.burnin
            if run is not None and _id_of(self._folder) == run.id:
                self._client.cancel_burnin(run.id)
        why = "the process that recorded the run has failed"
        with contextlib.suppress(ValueError, KeyError):
            why = json.loads(said)["what"]
        raise ConfigError(
            f"{file} was not written: {why}",
            f"To judge what it recorded: sentinel report {shlex.quote(str(self._folder.path))}",
        )

    def _is_over(self) -> bool:
        if self._recorder is None:
            return not self._folder.is_recorded
        return self._recorder.poll() is not None

    def _print_events(self, screen: output.LiveTable) -> None:
        """Print the events of the run that are not known, until it is over."""

        def wait(seconds: float) -> None:
            if self._ended:
                raise _EndedError
            self._ended = self._is_over()  # its last events may have come since the last look
            if not self._ended:
                if screen.is_live:
                    self._show_progress(screen)
                time.sleep(seconds)

        with contextlib.suppress(_EndedError, OSError), screen.shown():
            recorded = follow(self._folder.events, _ALL_LINES, wait)
            for line in islice(recorded, self._known, None):
                self._known += 1
                with contextlib.suppress(OSError):
                    self._print_event(screen, line)

    def _show_progress(self, screen: output.LiveTable) -> None:
        """Show how far each GPU is, once a second."""
        if time.monotonic() - self._shown_at < _SHOW_EVERY_S:
            return
        self._shown_at = time.monotonic()
        with contextlib.suppress(SentinelError, OSError):
            status = self._client.status()
            run = status.daemon.burnin
            if run is None:
                return
            gpus = [gpu for gpu in status.gpus if gpu.uuid in run.gpus]
            hint = "" if self._verbose else "; -v prints a line for each event"
            elapsed = max(1, round((datetime.now(UTC) - run.since).total_seconds()))
            heading = f"{run.plan} for {format_duration(elapsed)}{hint}"
            screen.show(partial(burnin_bars, gpus, heading))

    def _print_event(self, screen: output.LiveTable, line: str) -> None:
        """Print an event; on a terminal only if asked for, and unless the bars show it."""
        if screen.is_live and not self._verbose:
            return
        with contextlib.suppress(ValueError, KeyError, TypeError):  # shown as it is
            if screen.is_live and json.loads(line)["event"] in _PERIODIC:
                return
        text = log_line(line, colour=screen.has_colours)
        if text is not None:
            screen.line(text)


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        click.echo(text, err=True)
