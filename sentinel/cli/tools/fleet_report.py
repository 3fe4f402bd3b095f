"""``sentinel fleet report``: judge a fleet, now or at the end of a run."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TextIO

import click

from sentinel.burnin.levels import read_plan
from sentinel.burnin.verdict import Verdict, exit_code
from sentinel.cli.display.output import (
    LiveTable,
    Table,
    color_option,
    fit_report,
    print_json,
    printable,
)
from sentinel.cli.options.command_options import chosen_form, duration, print_report, strict_option
from sentinel.cli.options.setting_options import (
    expect_options,
    level_option,
    load_expectation,
    load_thresholds,
    thresholds_option,
)
from sentinel.config.expectation import Expectation
from sentinel.errors import ConfigError, ExitCode, SentinelError
from sentinel.fleet import follow
from sentinel.fleet.acceptance import Acceptance
from sentinel.fleet.drain import drain_nodes, reason_text
from sentinel.fleet.engine import EngineError
from sentinel.fleet.formats import FORMATS
from sentinel.fleet.node_files import (
    SharedThresholds,
    read_fleet,
    read_run_expectation,
    read_run_thresholds,
)
from sentinel.fleet.node_result import NodePlan
from sentinel.fleet.progress import record_reasons
from sentinel.fleet.report import fleet_object
from sentinel.fleet.run_folder import (
    FleetFolder,
    FleetRun,
    check_nodes,
    find_fleet,
    known_folder,
    write_shared,
)
from sentinel.fleet.verdict import FleetNode, FleetVerdict, judge_fleet
from sentinel.host.regular_file import read_regular
from sentinel.units import format_duration

#: How long nodes that are down, or whose tasks are held, are waited for, once all others are done,
#: in seconds.
DEFAULT_GIVE_UP_S = 600.0
#: A report of a run that ended longer ago than that has not passed, in seconds.
_DEFAULT_SINCE_S = 7 * 86400.0
#: A larger file is no list of nodes.
_MAX_NAMES_BYTES = 2**20
#: How often a pipe gets a line where nothing changes, in seconds.
_SUMMARY_EVERY_S = 30.0
#: The column that is truncated: the note.
_FLEXIBLE = 6
#: Lines of a terminal that are not for rows: the summary, the header and how many more there are.
_OTHER_LINES = 4


def _find(_context: click.Context, _parameter: click.Parameter, name: str | None) -> FleetFolder:
    return find_fleet(known_folder(os.environ, os.getuid()), name)


#: Adds the argument ``fleet``, a FleetFolder; without it, that of the last run.
run_argument = click.argument("fleet", metavar="[DIR|RUN]", required=False, callback=_find)


def say(text: str, *, as_json: bool) -> None:
    """Print a line for people: on standard error if standard output has JSON."""
    print(text, file=sys.stderr if as_json else sys.stdout, flush=True)


def end_detached(folder: FleetFolder, run: FleetRun, *, as_json: bool) -> int:
    """End a command that does not follow the run that it has submitted."""
    if as_json:
        print_json({"run": run.id, "folder": folder.path, "nodes": run.nodes})
    else:
        print(f"to watch it: sentinel fleet report --watch {shlex.quote(str(folder.path))}")
    return int(ExitCode.OK)


@dataclass
class FleetScreen:
    """Shows the nodes of a run: a table on a terminal, else a line for each change."""

    table: LiveTable
    _known: dict[str, tuple[object, ...]] = field(default_factory=dict)
    _summary_at: float = field(default_factory=time.monotonic)
    _engine_error: str = ""

    def show(self, statuses: Sequence[follow.NodeStatus], error: EngineError | None) -> None:
        """Show the state of all nodes, and why the engine does not answer, if so."""
        self._show_engine(error)
        for status in statuses:
            key = follow.change_key(status)
            # On a terminal, the table has the phases; lines are for what stays.
            if self.table.is_live:
                key = (status.state, status.verdict) if status.is_over else (status.findings,)
            first = status.node not in self._known
            if self._known.get(status.node) != key and not (first and self._is_dull(status)):
                self._line(status)
            self._known[status.node] = key
        text = follow.summary(statuses)
        if self.table.is_live:
            self._draw(statuses, text)
        elif time.monotonic() >= self._summary_at + _SUMMARY_EVERY_S:
            self.say(text)
            self._summary_at = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line with the time."""
        # What nodes and the engine have written must not control the terminal.
        self.table.line(f"{datetime.now().astimezone():%H:%M:%S}  {printable(text)}")

    def _is_dull(self, status: follow.NodeStatus) -> bool:
        """Check whether the first sight of a node is worth no line: it only waits for its turn."""
        return (
            not status.is_over
            and not status.findings
            and (
                self.table.is_live
                or (status.state is follow.NodeState.WAITING and not status.is_stuck)
            )
        )

    def _line(self, status: follow.NodeStatus) -> None:
        name, state, phase, left, heat, findings, _ = follow.describe(status)
        parts = [
            phase,
            left and f"{left} left",
            heat,
            findings and f"wrong results: {findings}",
        ]
        more = ", ".join(part for part in (*parts, follow.note(status)) if part)
        self.say(f"{name}  {state}  {more}".rstrip())

    def _show_engine(self, error: EngineError | None) -> None:
        """Print once that the engine does not answer, and once that it does again."""
        text = error.what if error is not None else ""
        if text and not self._engine_error:
            self.say(f"{text}; the nodes go on")
        elif self._engine_error and not text:
            self.say("the engine answers again")
        self._engine_error = text

    def _draw(self, statuses: Sequence[follow.NodeStatus], text: str) -> None:
        """Draw as many nodes as there is room for, those that need attention first."""
        rows = sorted(statuses, key=lambda status: status.urgency)
        room = max(1, self.table.height - _OTHER_LINES)
        above = [text]
        if len(rows) > room:
            above.append(f"the {room} that need most attention, of {len(rows)}:")
        self.table.draw([follow.describe(status) for status in rows[:room]], above)


def watch_run(
    folder: FleetFolder, run: FleetRun, *, give_up_s: float | None, stream: TextIO
) -> FleetVerdict | None:
    """Show a run until nothing more can come, and judge the fleet; write the verdict to its folder.

    Args:
        folder: The folder of the run.
        run: What it has.
        give_up_s: How long to wait for nodes that are down or held, once all others are done; None
            for the default.
        stream: Where to show the nodes.

    Returns:
        The verdict, or None after Ctrl+C, which ends this alone; the run goes on.
    """
    # Errors are to be known before the wait.
    thresholds, expectation = read_run_thresholds(folder, run), read_run_expectation(folder, run)
    follower = follow.FleetFollower(folder, run, follow.engine_of(run, folder))
    screen = FleetScreen(LiveTable(stream, Table(follow.NODE_HEADER, _FLEXIBLE, follow.NODE_RIGHT)))
    seconds = DEFAULT_GIVE_UP_S if give_up_s is None else give_up_s
    try:
        with screen.table.shown():
            statuses = _watch(follower, screen, seconds)
    except KeyboardInterrupt:
        quoted = shlex.quote(str(folder.path))
        click.echo(
            f"\nthe run goes on; to watch it: sentinel fleet report --watch {quoted}"
            f"\nto end it: sentinel fleet cancel {quoted}",
            err=True,
        )
        return None
    missing = {
        status.node: _why_missing(status, seconds)
        for status in statuses
        if status.state is not follow.NodeState.DONE
    }
    with _without_writing():
        record_reasons(folder, missing.keys(), {n: why for n, why in missing.items() if why})
    found = judge_fleet(read_fleet(folder.path), thresholds.fleet, expectation)
    with _without_writing():
        for form, path in (("html", folder.page), ("json", folder.summary)):
            write_shared(path, FORMATS[form](found))
    return found


def _watch(
    follower: follow.FleetFollower, screen: FleetScreen, give_up_s: float
) -> tuple[follow.NodeStatus, ...]:
    """Show the nodes until all are over, or those that are left could not begin for too long."""
    stalled_since: float | None = None
    while True:
        statuses = follower.look()
        screen.show(statuses, follower.engine_error)
        now = time.monotonic()
        if all(status.is_over for status in statuses):
            return statuses
        if not follow.is_stalled(statuses):
            stalled_since = None
        elif stalled_since is None:
            stalled_since = now
        elif now - stalled_since >= give_up_s:
            left = ", ".join(status.node for status in statuses if not status.is_over)
            screen.say(f"given up, since their tasks cannot begin: {left}")
            return statuses
        time.sleep(follower.pause_s)


def _why_missing(status: follow.NodeStatus, give_up_s: float) -> str:
    """Explain why a node has no final report; empty if the engine had no reason."""
    if status.state is follow.NodeState.MISSING:
        return status.task.reason
    why = status.why_stuck or "it waits for its turn, and could not be released"
    after = format_duration(round(give_up_s))
    return f"given up after {after}: {why}; its task stays in the queue"


def follow_to_verdict(
    folder: FleetFolder, run: FleetRun, *, give_up_s: float | None, as_json: bool
) -> int:
    """Watch a run that was submitted to its end, print the verdict, and return its exit code.

    With ``as_json`` the report is one JSON object, and the nodes are shown on standard error. Nodes
    that failed are drained if the run was begun so.
    """
    stream = sys.stderr if as_json else sys.stdout
    found = watch_run(folder, run, give_up_s=give_up_s, stream=stream)
    if found is None:
        return int(ExitCode.INTERRUPTED)
    if as_json:
        print_json(fleet_object(found))
    else:
        print(f"\n{fit_report(FORMATS['text'](found))}\n\nreports: {folder.path}")
    if run.drain:
        print_drained(folder, found, stream, again=False)
    sys.stdout.flush()
    return int(exit_code(found.verdict, strict=run.strict))


@contextlib.contextmanager
def _without_writing() -> Iterator[None]:
    """Report that a file cannot be written: the verdict is known, and its exit code matters more.

    A user who may only read the folder can watch its run, too.
    """
    try:
        yield
    except ConfigError as error:
        click.echo(f"sentinel: {error}", err=True)


def print_drained(folder: FleetFolder, found: FleetVerdict, stream: TextIO, *, again: bool) -> None:
    """Drain the failing nodes of a fleet, and print what became of each.

    An error of Slurm is printed: the verdict is known, and its exit code matters more. ``again``
    drains nodes that this run has drained before, too.
    """
    reasons = drain_reasons(found)
    try:
        results = drain_nodes(folder, reasons, again=again)
    except SentinelError as error:
        click.echo(f"sentinel: nodes were not drained: {error}", err=True)
        return
    for node, why_not in results.items():
        if why_not is None:
            print(f"drained {node}: {reasons[node]}", file=stream)
        else:
            print(printable(f"not drained: {node}: {why_not}"), file=stream)


def drain_reasons(found: FleetVerdict) -> dict[str, str]:
    """Build the reason for each node that has failed; INCOMPLETE and missing nodes have none."""
    return {
        node.name: reason_text(_fault(node))
        for node in found.nodes
        if node.verdict is Verdict.FAIL and not node.missing
    }


def _fault(node: FleetNode) -> str:
    """Name the worst fault of a node: the check, and the GPU that it is of."""
    for gpu in node.gpus:
        if gpu.verdict is Verdict.FAIL:
            check = gpu.bad[0].id if gpu.bad else "burn-in"
            return f"{check} on GPU {gpu.gpu.index} ({gpu.gpu.uuid})"
    return node.bad[0].id if node.bad else "burn-in"


@click.command("report")
@run_argument
@click.option("--text", is_flag=True, help="For a terminal: what stands out first (the default).")
@click.option("--html", is_flag=True, help="One page that needs no network.")
@click.option("--junit", is_flag=True, help="JUnit XML, a suite for each node.")
@click.option("--json", is_flag=True, help="One JSON object.")
@click.option("--jsonl", is_flag=True, help="JSON lines, one object for each GPU.")
@color_option
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write a file.")
@thresholds_option(".  [default: those of the run]")
@level_option("without fleet.json, the level that every node has done.  [default: standard]")
@click.option(
    "--plan", "file", type=click.Path(path_type=Path), help="Without fleet.json: a plan (TOML)."
)
@duration(
    "--since",
    "since_s",
    "Without fleet.json: a run that ended longer ago has not passed.  [default: 7d]",
)
@click.option(
    "--expect-nodes",
    "expected",
    metavar="FILE|N",
    help="Without fleet.json: all nodes, one name in each line, or how many there are.",
)
@click.option(
    "--simulated", is_flag=True, help="Without fleet.json: accept simulated GPUs (a rehearsal)."
)
@expect_options
@strict_option
@click.option("--watch", is_flag=True, help="Show the nodes until all are done, and judge then.")
@duration(
    "--give-up",
    "give_up_s",
    "With --watch: how long to wait for nodes that are down or held, when all others are done.  "
    "[default: 10m]",
)
@click.option("--drain", is_flag=True, help="Drain the nodes that failed, also again (Slurm).")
def report(
    fleet: FleetFolder,
    output: Path | None,
    limits: str | None,
    level: str | None,
    file: Path | None,
    since_s: float | None,
    expected: str | None,
    simulated: bool,
    expect: str | None,
    expect_gpus: int | None,
    strict: bool,
    give_up_s: float | None,
    watch: bool,
    drain: bool,
    **formats: bool,
) -> int:
    """Print the verdict of a fleet: of every node, and of all together.

    DIR is the folder of a run of `fleet burnin`, by default the last one, or any folder with the
    report.json of each node as NODE.json. A missing or incomplete file is MISSING, never PASS. GPUs
    of equal hardware are compared: a slow one, and one with other checksums than most, fails.

    A collected report (no fleet.json) is INCOMPLETE if it is of a screen, of simulated GPUs or of
    an old run, or has other limits or another plan than wanted. The wanted plan is that of --level,
    by default standard, whatever plan most nodes have.

    With --watch, a run that goes on is shown, by what its nodes write, and judged once it is over.
    Ctrl+C ends this command alone.

    The page has links to the nodes' own reports: write it into DIR, as report.html.

    The exit code is that of the verdict: 0 passed, maybe with warnings; 1 failed; 3 incomplete, or
    a node is missing.
    """
    form = chosen_form(formats)
    if give_up_s is not None and not watch:
        raise click.UsageError("--give-up is for --watch")
    stream = sys.stdout if form == "text" and output is None else sys.stderr
    run = fleet.read() if watch or drain else None
    if run is not None and drain and run.engine != "slurm":
        raise click.UsageError("--drain is for runs by Slurm")
    given = None if limits is None else load_thresholds(limits)
    collected = _Collected(level, file, since_s, expected, simulated, strict)
    if fleet.run_file.exists():
        collected.check_unused(fleet)
    expectation = load_expectation(expect, expect_gpus, is_here=False)
    found: FleetVerdict | None = None
    if watch and run is not None:
        found = watch_run(fleet, run, give_up_s=give_up_s, stream=stream)
        if found is None:
            return int(ExitCode.INTERRUPTED)
        print(file=stream)
    if found is None or given is not None or expectation.text:
        found = _judge(fleet, given, collected, expectation)
    found = replace(found, read_strictly=strict)
    print_report(FORMATS[form](found), output, painted=form == "text")
    if drain or (watch and run is not None and run.drain):
        print_drained(fleet, found, stream, again=drain)
    sys.stdout.flush()
    return int(exit_code(found.verdict, strict=found.strict))


@dataclass(frozen=True)
class _Collected:
    """What reports must be that were collected without a run."""

    level: str | None = None
    file: Path | None = None
    since_s: float | None = None
    expected: str | None = None
    simulated: bool = False
    strict: bool = False

    def check_unused(self, fleet: FleetFolder) -> None:
        """Refuse what is given beside a ``fleet.json``, which says what was asked for."""
        flags = ("--level", "--plan", "--since", "--expect-nodes", "--simulated")
        values = zip(flags, astuple(self), strict=False)
        given = [flag for flag, value in values if value not in {None, False}]
        if given:
            why = f"{fleet.run_file} says what was asked for"
            raise click.UsageError(f"{', '.join(given)}: for collected reports; {why}")

    def nodes(self) -> tuple[str, ...] | int:
        """Read the nodes that are expected, or their number; empty if none are."""
        if self.expected is None or self.expected.isdecimal():
            number = int(self.expected or 0)
            if self.expected is not None and not number:
                raise click.UsageError("--expect-nodes: allowed is a number from 1 on, or a file")
            return number or ()
        try:
            text = read_regular(Path(self.expected), _MAX_NAMES_BYTES).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--expect-nodes {self.expected} cannot be read: {error}") from None
        names = tuple(" ".join(line.partition("#")[0] for line in text.splitlines()).split())
        check_nodes(names, f"--expect-nodes {self.expected}")
        return names

    def acceptance(self, thresholds: SharedThresholds) -> Acceptance:
        """Build what a report must be."""
        plan = read_plan(self.level or "standard", self.file)[0]
        now = datetime.now().astimezone()
        since_s = _DEFAULT_SINCE_S if self.since_s is None else self.since_s
        return Acceptance(
            plan=NodePlan(name=plan.name, hash=plan.hash),
            overridden=thresholds.node.overridden(),
            since=now - timedelta(seconds=since_s),
            now=now,
            simulated=self.simulated,
            strict=self.strict,
        )


def _judge(
    fleet: FleetFolder,
    given: SharedThresholds | None,
    collected: _Collected,
    expectation: Expectation,
) -> FleetVerdict:
    """Judge what is in the folder now, by what is given or else by what the run has."""
    files = read_fleet(fleet.path, collected.nodes())
    if files.run is None:
        thresholds = given or SharedThresholds()
        acceptance = collected.acceptance(thresholds)
        return judge_fleet(files, thresholds.fleet, expectation, acceptance)
    expectation = expectation if expectation.text else read_run_expectation(fleet, files.run)
    if given is None or given.hash == files.run.thresholds_hash:
        own = given or read_run_thresholds(fleet, files.run)
        return judge_fleet(files, own.fleet, expectation)
    return judge_fleet(files, given.fleet, expectation, judged_again_by=given.fleet.origin)
