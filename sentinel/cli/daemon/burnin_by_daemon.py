"""``sentinel burnin`` where a daemon runs: start, record, follow, show and cancel a run.

A process of its own records the run, so that it survives the terminal. The command only follows
what that process writes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click

from sentinel.burnin.daemon_run import record_run
from sentinel.burnin.records.run_folder import RunFolder, find_run
from sentinel.burnin.reports.formats import write_reports
from sentinel.burnin.reports.report import judge_run
from sentinel.burnin.reports.text import text_lines as report_lines
from sentinel.burnin.reports.verdict import EXIT_CODES, Verdict
from sentinel.burnin.resume import can_go_on
from sentinel.cli.display.burnin_screen import HEADER, RIGHT, Screen, progress_row
from sentinel.cli.display.event_format import log_line
from sentinel.cli.display.json_output import print_json
from sentinel.cli.display.terminal import color_option
from sentinel.cli.display.verdict_colours import paint_verdicts
from sentinel.cli.log_follow import follow
from sentinel.cli.options import value_completion
from sentinel.cli.options.client_options import json_option, show, simulated_folder, with_client
from sentinel.cli.options.thresholds_file import load_thresholds
from sentinel.client import Client, Status, connect
from sentinel.errors import ConfigError, ExitCode, NotRunningError, SentinelError
from sentinel.host.daemons.daemon_lookup import find_shared
from sentinel.host.daemons.registry import records_folder, running_burnins
from sentinel.protocol.api_types import GpuStatus

#: All lines of a file of events, which has fewer.
_ALL_LINES = 10_000_000
#: The event that names a run.
_STARTED = '"burnin.run_started"'
#: How often a terminal shows the progress, in seconds.
_SHOW_EVERY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Order:
    """A burn-in to ask a daemon for."""

    folder: RunFolder
    #: The plan as TOML, or None to go on with the run of the folder.
    text: str | None
    #: The socket of the daemon.
    socket: str
    gpus: tuple[str, ...] = ()
    fail_fast: bool = False
    #: The file of thresholds, or None.
    thresholds: str | None = None


class _RefusedError(SentinelError):
    """The process that records a run has not begun; it has an exit code of its own."""


def follow_new_run(client: Client, order: Order, *, as_json: bool) -> int:
    """Have a run started and recorded, follow it to its end, and print the report.

    Ctrl+C cancels the run and shows what was done; a second one leaves it to end by itself.

    Raises:
        SentinelError: Nothing was started.
    """
    folder = order.folder
    known = folder.event_count() if order.text is None else 0
    process = _start_recorder(order)
    stream = sys.stderr if as_json else sys.stdout
    print(
        f"the daemon runs it, and this terminal may be closed; recorded in {folder.path}",
        file=stream,
    )
    return _Following(
        folder,
        client,
        is_over=lambda: process.poll() is not None,
        cancel_run=client.cancel_burnin,
        known=known,
    ).to_report(as_json=as_json)


def print_report(report: Mapping[str, Any], folder: RunFolder, *, as_json: bool) -> None:
    """Print a report, and how to go on with a run that is not complete."""
    if as_json:
        print_json(report)
        return
    text = paint_verdicts("\n".join(report_lines(report)))
    print(f"\n{text}\n\nreports: {folder.path}")
    if can_go_on(report):
        simulate = ""
        if report["run"]["simulated"]:
            simulate = f" --simulate {1 + max(gpu['index'] for gpu in report['gpus'])}"
        click.echo(f"go on with: sentinel burnin --resume {folder.path}{simulate}")
    sys.stdout.flush()


@click.command("status")
@color_option
@json_option
@with_client
def status(client: Client, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Show how far the daemon's burn-in is on each GPU, and which burn-ins run without it."""
    others = running_burnins(records_folder(os.environ, os.getuid()))
    try:
        shown = client.status()
    except NotRunningError:
        if not others:
            raise
        shown = None
    if as_json:
        gpus = {one["uuid"]: one.get("burnin") for one in shown.json["gpus"]} if shown else {}
        run = shown.json["daemon"].get("burnin") if shown else None
        runs = [{"pid": one.pid, "run": one.run} for one in others]
        print_json({"burnin": run, "gpus": gpus, "without_daemon": runs})
        return int(ExitCode.OK)
    for one in others:
        print(f"{one}\nTo follow it: sentinel burnin attach {one.run}")
    if shown is not None:
        _print_progress(shown, alone=not others)
    return int(ExitCode.OK)


def _print_progress(shown: Status, *, alone: bool) -> None:
    """Print the progress of the daemon's burn-in, or of the plan that it goes through."""
    run = shown.daemon.burnin
    gpus = [gpu for gpu in shown.gpus if (gpu.burnin if run is None else gpu.uuid in run.gpus)]
    if not gpus:
        if alone:
            print("no burn-in runs")
        return
    from sentinel.cli.display.output import print_table

    if run is not None:
        print(f"{run.plan}, since {run.since:%Y-%m-%d %H:%M}")
    else:
        plans = sorted({gpu.burnin.plan for gpu in gpus if gpu.burnin is not None})
        print(f"{', '.join(plans)}, again and again: the daemon was started with --plan")
    print_table(HEADER, [_row(gpu) for gpu in gpus], flexible=None, right=RIGHT)


@click.command("attach")
@click.argument("run", required=False, shell_complete=value_completion.runs)
@color_option
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.option("--simulated", is_flag=True, help="Look in the state directory of simulated GPUs.")
def attach(run: str | None, as_json: bool, simulated: bool) -> int:  # noqa: FBT001 - click's
    """Follow a run, by default the last one, and print its report at its end.

    RUN is its folder, or its name in the state directory. Ctrl+C ends this command alone.
    """
    simulation = simulated_folder(chosen=simulated)
    folder = RunFolder(path=find_run(find_shared(simulation), run))
    client = connect(simulated=simulation)
    if run is None:
        _check_last(client, folder)
    following = _Following(folder, client, is_over=lambda: not folder.is_recorded)
    return following.to_report(as_json=as_json)


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
    if current is not None and not _is_of(folder, current.id):
        raise ConfigError(
            f"the daemon's burn-in {current.plan} is recorded in another folder than {folder.path}",
            "Name it: sentinel burnin attach DIR",
        )


def _is_of(folder: RunFolder, run: str) -> bool:
    """Check whether a folder records a run of the daemon, by its id."""
    with contextlib.suppress(OSError), folder.events.open() as events:
        return any(_STARTED in line and f'"{run}"' in line for line in events)
    return False


@click.command("cancel")
@json_option
@with_client
def cancel(client: Client, as_json: bool) -> int:  # noqa: FBT001 - click's
    """End the daemon's burn-in; its report shows what was done."""
    return show(client.cancel_burnin(), as_json=as_json)


# --- the process that records ----------------------------------------------------------------


@click.command("record", hidden=True)
def record() -> int:
    """Record a run; the order comes over standard input, and the result of the start goes out."""
    given = json.loads(sys.stdin.read())
    folder = RunFolder(path=Path(given.pop("folder")))
    order = Order(folder=folder, **{**given, "gpus": tuple(given["gpus"])})
    verdicts: list[Verdict] = []
    try:
        thresholds = load_thresholds(order.thresholds).node

        def judge() -> None:
            run = judge_run(folder, thresholds)
            write_reports(folder, run)
            verdicts.append(run.verdict)

        client = connect(order.socket)
        record_run(
            client,
            folder,
            order.text,
            gpus=order.gpus,
            fail_fast=order.fail_fast,
            on_start=_report_start,
            thresholds=thresholds,
            judge=judge,
        )
    except SentinelError as error:
        print(json.dumps({"what": error.what, "remedy": error.remedy, "code": error.exit_code}))
        return int(error.exit_code)
    except BrokenPipeError:  # the command has ended before the daemon had begun
        return int(ExitCode.INTERRUPTED)
    return int(EXIT_CODES[verdicts[0]])


def _report_start() -> None:
    """Tell the command that the daemon has begun, and need its terminal no more."""
    print(json.dumps({}), flush=True)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


def _start_recorder(order: Order) -> subprocess.Popen[bytes]:
    """Start the process that records, and wait until the daemon has begun.

    Raises:
        SentinelError: It has not.
    """
    given = {**vars(order), "folder": str(order.folder.path.absolute())}
    if order.thresholds is not None:
        given["thresholds"] = str(Path(order.thresholds).absolute())
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sentinel", "burnin", "record"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # it survives this terminal
    )
    assert process.stdin is not None  # noqa: S101 - as asked for
    assert process.stdout is not None  # noqa: S101
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(json.dumps(given).encode())
    with process.stdout as pipe:
        answer = pipe.readline()
    told: dict[str, Any] = (
        json.loads(answer) if answer else {"what": "the recording process has failed"}
    )
    if told:
        process.wait()
        error = _RefusedError(told["what"], told.get("remedy", ""))
        code = ExitCode(told.get("code", ExitCode.USAGE))
        # Of a burn-in, the code of a conflict is a verdict: another one has the GPUs.
        error.exit_code = ExitCode.HELD if code is ExitCode.FAIL else code
        raise error
    return process


# --- following -------------------------------------------------------------------------------


class _EndedError(Exception):
    """The run is over, and all of its events are read."""


class _Following:
    """Prints what a run records, until it is over.

    Args:
        folder: The run.
        client: The client of the daemon, for the table on a terminal.
        is_over: Whether the run is over.
        cancel_run: Cancels it at Ctrl+C; without it, Ctrl+C only ends this.
        known: The number of recorded events not to print.
    """

    def __init__(
        self,
        folder: RunFolder,
        client: Client,
        *,
        is_over: Callable[[], bool],
        cancel_run: Callable[[], object] | None = None,
        known: int = 0,
    ) -> None:
        self._folder = folder
        self._client = client
        self._is_over = is_over
        self._cancel_run = cancel_run
        self._known = known
        self._ended = False
        self._shown_at = 0.0

    def to_report(self, *, as_json: bool) -> int:
        """Follow the run, and print its report; return the exit code of its verdict.

        Raises:
            ConfigError: There is no report, since the process that recorded the run has failed.
        """
        screen = Screen(sys.stderr if as_json else sys.stdout)
        while True:
            try:
                with screen.shown():
                    self._print_events(screen)
                break
            except KeyboardInterrupt:
                if self._cancel_run is None:
                    click.echo("\nthe burn-in goes on; to end it: sentinel burnin cancel", err=True)
                    return int(ExitCode.INTERRUPTED)
                click.echo("\ncancelling; Ctrl+C again leaves this", err=True)
                with contextlib.suppress(SentinelError):  # it may have ended at this moment
                    self._cancel_run()
                self._cancel_run = None
        file = self._folder.path / "report.json"
        try:
            report = json.loads(file.read_text())
        except (OSError, ValueError):
            self._cancel_unrecorded()
            raise ConfigError(
                f"{file} was not written: the process that recorded the run has failed",
                f"To judge what it recorded: sentinel report {self._folder.path}",
            ) from None
        with contextlib.suppress(BrokenPipeError):
            print_report(report, self._folder, as_json=as_json)
        return int(EXIT_CODES[Verdict(report["verdict"])])

    def _cancel_unrecorded(self) -> None:
        """Cancel the run if it goes on without a record: its work would prove nothing."""
        with contextlib.suppress(SentinelError):
            run = self._client.status().daemon.burnin
            if run is not None and _is_of(self._folder, run.id):
                self._client.cancel_burnin()

    def _print_events(self, screen: Screen) -> None:
        """Print the events of the run that are not known, until it is over."""

        def wait(seconds: float) -> None:
            if self._ended:
                raise _EndedError
            self._ended = self._is_over()  # its last events may have come since the last look
            if not self._ended:
                if screen.is_live:
                    self._show_progress(screen)
                time.sleep(seconds)

        with contextlib.suppress(_EndedError):
            recorded = follow(self._folder.events, _ALL_LINES, wait)
            for line in islice(recorded, self._known, None):
                with contextlib.suppress(ValueError, KeyError, TypeError):  # shown as it is
                    event = json.loads(line)
                    if screen.tabulate(event["event"], event.get("index"), event):
                        continue
                text = log_line(line, colour=screen.has_colours)
                if text is not None:
                    screen.line(text)

    def _show_progress(self, screen: Screen) -> None:
        """Show how far each GPU is, once a second."""
        if time.monotonic() - self._shown_at < _SHOW_EVERY_S:
            return
        self._shown_at = time.monotonic()
        with contextlib.suppress(SentinelError):
            status = self._client.status()
            run = status.daemon.burnin
            gpus = run.gpus if run is not None else ()
            screen.show({gpu.index: _row(gpu) for gpu in status.gpus if gpu.uuid in gpus})


def _row(gpu: GpuStatus) -> tuple[str, ...]:
    """Build the row of a GPU in a burn-in."""
    if gpu.burnin is None:
        return (str(gpu.index), *("" for _ in HEADER[2:]), "not started")
    return progress_row(gpu.index, vars(gpu.burnin), vars(gpu))
