"""Start, record, follow, show and cancel a burn-in, by the host's daemon or by a private one.

A process of its own records the run, so that it can survive the terminal. The command only follows
what that process writes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import click

from sentinel.burnin.formats import text_lines as report_lines
from sentinel.burnin.formats import write_reports
from sentinel.burnin.report import Judged, judge_run
from sentinel.burnin.run import RunRequest, can_go_on, record_run
from sentinel.burnin.run_folder import RunFolder, find_run
from sentinel.burnin.verdict import EXIT_CODES, Verdict
from sentinel.cli.display.burnin_screen import HEADER, RIGHT, Screen, progress_row
from sentinel.cli.display.log_lines import follow, log_line
from sentinel.cli.display.output import color_option, paint_verdicts, print_json
from sentinel.cli.options import value_completion
from sentinel.cli.options.command_options import json_option, show, simulated_folder, with_client
from sentinel.cli.options.thresholds_file import load_thresholds
from sentinel.client import Client, Status, connect
from sentinel.client.hold import private_sentinel
from sentinel.errors import ConfigError, ExitCode, NotRunningError, SentinelError
from sentinel.host.daemons import registry
from sentinel.host.daemons.daemon_lookup import find_shared
from sentinel.host.daemons.registry import records_folder, running_burnins
from sentinel.host.files.paths import places
from sentinel.host.gpus import simulation
from sentinel.host.processes.child_setup import end_with_parent
from sentinel.host.processes.procfs import read_stat
from sentinel.protocol.api_types import GpuStatus
from sentinel.supervisor.bootstrap import leave

#: All lines of a file of events, which has fewer.
_ALL_LINES = 10_000_000
#: The event that names a run.
_STARTED = '"burnin.run_started"'
#: How often a terminal shows the progress, in seconds.
_SHOW_EVERY_S = 1.0
#: Signals that end the record of a run.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the process that records a run is asked for; its fields are JSON values."""

    folder: str
    #: The plan as TOML, or None to go on with the run of the folder.
    text: str | None
    gpus: Sequence[str] = ()
    fail_fast: bool = False
    #: The file of thresholds, or None.
    thresholds: str | None = None
    #: The socket of the daemon, or None to start a private one.
    socket: str | None = None
    #: The flags of ``sentinel run`` for a private daemon.
    flags: Sequence[str] = ()
    #: The folder of the simulated GPUs and their number; None with real ones.
    simulated: str | None = None
    simulate: int | None = None
    #: The PID of the command, with which a private daemon ends.
    command: int = field(default_factory=os.getpid)


class _RefusedError(SentinelError):
    """The process that records a run has not begun; it has an exit code of its own."""


def follow_new_run(order: Order, *, as_json: bool) -> int:
    """Have a run started and recorded, follow it to its end, and print the report.

    Ctrl+C cancels the run and shows what was done. A second one leaves a run of the host's daemon
    to end by itself, and ends a private daemon at once. That takes SIGTERM and SIGHUP as Ctrl+C.

    Raises:
        SentinelError: Nothing was started.
    """
    folder = RunFolder(path=Path(order.folder))
    known = folder.event_count() if order.text is None else 0
    if order.socket is None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
    recorder, socket = _start_recorder(order)
    if order.socket is not None:
        where = f"the daemon runs it, and this terminal may be closed; recorded in {folder.path}"
        with contextlib.suppress(OSError):
            print(where, file=sys.stderr if as_json else sys.stdout)
    is_private = order.socket is None
    following = _Following(folder, connect(socket), recorder, known=known, is_private=is_private)
    return following.to_report(as_json=as_json)


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
        runs = [{"pid": other.pid, "run": other.run} for other in others]
        print_json({"burnin": run, "gpus": gpus, "without_daemon": runs})
        return int(ExitCode.OK)
    for other in others:
        print(f"{other}\nTo follow it: sentinel burnin attach {other.run}")
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
    return _Following(folder, client).to_report(as_json=as_json)


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
    """Record a run; the order comes over standard input, and the result of the start goes out.

    A signal cancels the run, so that it ends with a report.
    """
    order = Order(**json.loads(sys.stdin.read()))
    if order.socket is None:
        end_with_parent(order.command, signal.SIGTERM)
    for number in _ENDS:
        signal.signal(number, signal.default_int_handler)
    folder = RunFolder(path=Path(order.folder))
    judged: list[Judged] = []
    try:
        thresholds = load_thresholds(order.thresholds).node
        if order.simulated is not None and order.simulate is not None:
            simulation.Registry.create(Path(order.simulated), order.simulate)
        request = RunRequest(
            folder=folder,
            text=order.text,
            gpus=tuple(order.gpus),
            fail_fast=order.fail_fast,
            simulated=None if order.simulated is None else Path(order.simulated),
            thresholds=thresholds,
        )

        def judge() -> None:
            judged.append(judge_run(folder, thresholds))
            write_reports(folder, judged[0])

        clean = record_run(request, partial(_connected, order), _report_start, judge)
    except SentinelError as error:
        print(json.dumps({"what": error.what, "remedy": error.remedy, "code": error.exit_code}))
        return int(error.exit_code)
    except (BrokenPipeError, KeyboardInterrupt):  # the command has ended before the run had begun
        return int(ExitCode.INTERRUPTED)
    (run,) = judged
    unkillable = any(gpu.record.is_unkillable for gpu in run.gpus)
    code = ExitCode.UNKILLABLE if unkillable else EXIT_CODES[run.verdict]
    return int(leave(code, clean=clean and not run.stuck))


@contextlib.contextmanager
def _connected(order: Order, gpus: Sequence[str]) -> Iterator[Client]:
    """Connect to the host's daemon, or to a private one, which ends with the block.

    Raises:
        SentinelError: The private daemon did not start.
    """
    if order.socket is not None:
        yield connect(order.socket)
        return
    selected = ["--gpus", ",".join(gpus)] if gpus else []
    with private_sentinel(["--burnin-only", *order.flags, *selected]) as held:
        held.wait_ready()
        simulated = None if order.simulated is None else Path(order.simulated)
        where = places(os.environ, os.getuid(), simulated)
        process = read_stat(held.pid)
        record = replace(
            registry.describe_own(
                where.shared.absolute(),
                simulated=order.simulated,
                simulate=order.simulate,
                run=order.folder,
            ),
            pid=held.pid,
            started=0 if process is None else process.started,
        )
        path = where.socket.with_name(f"burnin-{held.pid}.json").absolute()
        with registry.recorded(path, record, records_folder(os.environ, os.getuid())):
            yield held.client


def _report_start(client: Client) -> None:
    """Tell the command that the run has begun; leave its terminal, and end by a cancel."""

    def cancel(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=_cancel, args=(client,), daemon=True).start()

    for number in _ENDS:
        signal.signal(number, cancel)
    print(json.dumps({"socket": client.address.socket}), flush=True)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


def _cancel(client: Client) -> None:
    with contextlib.suppress(SentinelError):  # it may have ended at this moment
        client.cancel_burnin()


def _start_recorder(order: Order) -> tuple[subprocess.Popen[bytes], str]:
    """Start the process that records, and wait until the daemon has begun.

    Returns:
        The process, and the socket of the daemon.

    Raises:
        SentinelError: It has not.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sentinel", "burnin", "record"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # it survives this terminal
    )
    assert process.stdin is not None  # noqa: S101 - as asked for
    assert process.stdout is not None  # noqa: S101
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(json.dumps(vars(order)).encode())
    with process.stdout as pipe:
        answer = pipe.readline()
    told: dict[str, Any] = (
        json.loads(answer) if answer else {"what": "the recording process has failed"}
    )
    if "what" in told:
        process.wait()
        error = _RefusedError(told["what"], told.get("remedy", ""))
        code = ExitCode(told.get("code", ExitCode.USAGE))
        # Of a burn-in, the code of a conflict is a verdict: another one has the GPUs.
        error.exit_code = ExitCode.HELD if code is ExitCode.FAIL else code
        raise error
    return process, told["socket"]


# --- following -------------------------------------------------------------------------------


class _EndedError(Exception):
    """The run is over, and all of its events are read."""


class _Following:
    """Prints what a run records, until it is over; a terminal that is gone does not end that.

    Args:
        folder: The run.
        client: The client of the daemon, for the table on a terminal.
        recorder: The process that records the run, if this command has started it: Ctrl+C then
            cancels the run. Otherwise, Ctrl+C only ends this.
        known: The number of recorded events not to print.
        is_private: Whether the daemon ends with this command.
    """

    def __init__(
        self,
        folder: RunFolder,
        client: Client,
        recorder: subprocess.Popen[bytes] | None = None,
        *,
        known: int = 0,
        is_private: bool = False,
    ) -> None:
        self._folder = folder
        self._known = known
        self._client = client
        self._recorder = recorder
        self._is_private = is_private
        self._cancels = recorder is not None
        self._ended = False
        self._shown_at = 0.0

    def to_report(self, *, as_json: bool) -> int:
        """Follow the run, and print its report; return the exit code of its verdict.

        Args:
            as_json: Print the report as JSON, and the events to standard error.

        Raises:
            ConfigError: There is no report, since the process that recorded the run has failed.
        """
        screen = Screen(sys.stderr if as_json else sys.stdout)
        while True:
            try:
                self._print_events(screen)
                break
            except KeyboardInterrupt:
                if not self._cancels:
                    return self._leave()
                _tell("\ncancelling; Ctrl+C again leaves this")
                _cancel(self._client)
                self._cancels = False
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
        ended = None if self._recorder is None else self._recorder.wait()
        file = self._folder.path / "report.json"
        with contextlib.suppress(OSError, ValueError):
            report: dict[str, Any] = json.loads(file.read_text())
            code = int(EXIT_CODES[Verdict(report["verdict"])])
            if ended in {None, code, ExitCode.UNKILLABLE}:
                return report, code if ended is None else ended
        with contextlib.suppress(SentinelError):  # without a record, its work would prove nothing
            run = self._client.status().daemon.burnin
            if run is not None and _is_of(self._folder, run.id):
                self._client.cancel_burnin()
        raise ConfigError(
            f"{file} was not written: the process that recorded the run has failed",
            f"To judge what it recorded: sentinel report {self._folder.path}",
        )

    def _is_over(self) -> bool:
        if self._recorder is None:
            return not self._folder.is_recorded
        return self._recorder.poll() is not None

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

        with contextlib.suppress(_EndedError, OSError), screen.shown():
            recorded = follow(self._folder.events, _ALL_LINES, wait)
            for line in islice(recorded, self._known, None):
                self._known += 1
                with contextlib.suppress(OSError):
                    _print_event(screen, line)

    def _show_progress(self, screen: Screen) -> None:
        """Show how far each GPU is, once a second."""
        if time.monotonic() - self._shown_at < _SHOW_EVERY_S:
            return
        self._shown_at = time.monotonic()
        with contextlib.suppress(SentinelError, OSError):
            status = self._client.status()
            run = status.daemon.burnin
            gpus = run.gpus if run is not None else ()
            shown = [gpu for gpu in status.gpus if gpu.uuid in gpus and gpu.burnin is not None]
            screen.show({gpu.index: _row(gpu) for gpu in shown})


def _print_event(screen: Screen, line: str) -> None:
    """Print an event, or enter it into the table."""
    with contextlib.suppress(ValueError, KeyError, TypeError):  # shown as it is
        event = json.loads(line)
        if screen.tabulate(event["event"], event.get("index"), event):
            return
    text = log_line(line, colour=screen.has_colours)
    if text is not None:
        screen.line(text)


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        click.echo(text, err=True)


def _row(gpu: GpuStatus) -> tuple[str, ...]:
    """Build the row of a GPU in a burn-in."""
    if gpu.burnin is None:
        return (str(gpu.index), *("" for _ in HEADER[2:]), "done")
    return progress_row(gpu.index, vars(gpu.burnin), vars(gpu))
