"""Follow a fleet run in a terminal or a pipe, and end with the verdict of the fleet."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TextIO

import click

from sentinel.burnin.reports.verdict import EXIT_CODES, Verdict
from sentinel.cli.display.json_output import print_json
from sentinel.cli.display.live_table import LiveTable
from sentinel.cli.display.terminal import printable
from sentinel.cli.display.verdict_colours import paint_verdicts
from sentinel.errors import ExitCode, SentinelError
from sentinel.fleet.checks.shared_thresholds import read_run_thresholds
from sentinel.fleet.checks.verdict import FleetNode, FleetVerdict, judge_fleet
from sentinel.fleet.engine import Engine, EngineError
from sentinel.fleet.follow import FleetFollower, engine_of
from sentinel.fleet.records.missing_nodes import record_reasons
from sentinel.fleet.records.node_files import read_fleet
from sentinel.fleet.records.run_file import FleetFolder, FleetRun, write_shared
from sentinel.fleet.reports.formats import FORMATS
from sentinel.fleet.reports.report import fleet_object
from sentinel.fleet.slurm.drain import drain_nodes, reason_text
from sentinel.fleet.status import (
    NODE_HEADER,
    NODE_RIGHT,
    NodeState,
    NodeStatus,
    change_key,
    describe,
    is_stalled,
    note,
    summary,
)
from sentinel.units import format_duration

#: How often a pipe gets a line where nothing changes, in seconds.
_SUMMARY_EVERY_S = 30.0
#: The column that is truncated: the note.
_FLEXIBLE = 6
#: Lines of a terminal that are not for rows: the summary, the header and how many more there are.
_OTHER_LINES = 4


@dataclass
class FleetScreen:
    """Shows the nodes of a run: a table on a terminal, else a line for each change."""

    table: LiveTable
    _known: dict[str, tuple[object, ...]] = field(default_factory=dict)
    _summary_at: float = field(default_factory=time.monotonic)
    _engine_error: str = ""

    def show(self, statuses: Sequence[NodeStatus], error: EngineError | None) -> None:
        """Show the state of all nodes, and why the engine does not answer, if so."""
        self._show_engine(error)
        for one in statuses:
            key = change_key(one)
            # On a terminal, the table has the phases; lines are for what stays.
            if self.table.is_live:
                key = (one.state, one.verdict) if one.is_over else (one.findings,)
            first = one.node not in self._known
            if self._known.get(one.node) != key and not (first and self._is_dull(one)):
                self._line(one)
            self._known[one.node] = key
        text = summary(statuses)
        if self.table.is_live:
            self._draw(statuses, text)
        elif time.monotonic() >= self._summary_at + _SUMMARY_EVERY_S:
            self.say(text)
            self._summary_at = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line with the time."""
        # What nodes and the engine have written must not control the terminal.
        self.table.line(f"{datetime.now().astimezone():%H:%M:%S}  {printable(text)}")

    def _is_dull(self, one: NodeStatus) -> bool:
        """Check whether the first sight of a node is worth no line: it only waits for its turn."""
        return (
            not one.is_over
            and not one.findings
            and (self.table.is_live or (one.state is NodeState.WAITING and not one.is_stuck))
        )

    def _line(self, one: NodeStatus) -> None:
        name, state, phase, left, heat, findings, _ = describe(one)
        parts = [
            phase,
            left and f"{left} left",
            heat,
            findings and f"wrong results: {findings}",
        ]
        more = ", ".join(part for part in (*parts, note(one)) if part)
        self.say(f"{name}  {state}  {more}".rstrip())

    def _show_engine(self, error: EngineError | None) -> None:
        """Print once that the engine does not answer, and once that it does again."""
        text = error.what if error is not None else ""
        if text and not self._engine_error:
            self.say(f"{text}; the nodes go on")
        elif self._engine_error and not text:
            self.say("the engine answers again")
        self._engine_error = text

    def _draw(self, statuses: Sequence[NodeStatus], text: str) -> None:
        """Draw as many nodes as there is room for, those that need attention first."""
        rows = sorted(statuses, key=lambda one: one.urgency)
        room = max(1, self.table.height - _OTHER_LINES)
        above = [text]
        if len(rows) > room:
            above.append(f"the {room} that need most attention, of {len(rows)}:")
        self.table.draw([describe(one) for one in rows[:room]], above)


def follow_to_verdict(
    folder: FleetFolder, run: FleetRun, *, give_up_s: float, drain: bool, as_json: bool
) -> int:
    """Follow a run until nothing more can come, and print the fleet's verdict.

    Ctrl+C ends this alone; the run goes on.

    Args:
        folder: The folder of the run.
        run: What it has.
        give_up_s: How long to wait for nodes that are down or held, once all others are done.
        drain: Whether to drain failing nodes that this run has drained before, too. Without it, a
            run that was begun with --drain drains each of them once.
        as_json: Whether to print the report as one JSON object, and the nodes on standard error.

    Returns:
        The exit code of the verdict.
    """
    thresholds = read_run_thresholds(folder, run).fleet  # an error is to be known before the wait
    engine = engine_of(run, folder)
    stream = sys.stderr if as_json else sys.stdout
    screen = FleetScreen(LiveTable(stream, NODE_HEADER, NODE_RIGHT, _FLEXIBLE))
    try:
        with screen.table.shown():
            statuses, given_up = _follow(
                FleetFollower(folder, run, engine), screen, engine, give_up_s
            )
    except KeyboardInterrupt:
        click.echo(
            f"\nthe run goes on; to follow it: sentinel fleet attach {folder.path}"
            f"\nto end it: sentinel fleet cancel {folder.path}",
            err=True,
        )
        return int(ExitCode.INTERRUPTED)
    missing = {one.node: one for one in statuses if one.state is NodeState.MISSING}
    reasons = {node: one.reason for node, one in missing.items() if one.reason}
    record_reasons(folder, missing, {**reasons, **given_up})
    found = judge_fleet(read_fleet(folder.path), thresholds)
    write_verdict(found, folder)
    if as_json:
        print_json(fleet_object(found))
    else:
        print(f"\n{paint_verdicts(FORMATS['text'](found))}\n\nreports: {folder.path}")
    if drain or run.drain:
        print_drained(folder, found, stream, again=drain)
    sys.stdout.flush()
    return int(EXIT_CODES[found.verdict])


def _follow(
    follower: FleetFollower, screen: FleetScreen, engine: Engine, give_up_s: float
) -> tuple[tuple[NodeStatus, ...], dict[str, str]]:
    """Show the nodes until all of them are over.

    Returns:
        The last look, and the nodes that were given up, with the reason.
    """
    stalled_since: float | None = None
    given_up: dict[str, str] = {}
    while True:
        statuses = follower.look()
        screen.show(statuses, follower.engine_error)
        if all(one.is_over for one in statuses):
            return statuses, given_up
        now = time.monotonic()
        stalled_since = (stalled_since or now) if is_stalled(statuses) else None
        if stalled_since is not None and now - stalled_since >= give_up_s:
            stuck = [one for one in statuses if one.is_stuck]
            after = f"given up after {format_duration(round(give_up_s))}"
            given_up |= {one.node: f"{after}: {one.why_stuck}" for one in stuck}
            for why, chosen in (
                ("they cannot be reached", [one.node for one in stuck if not one.hold]),
                ("their tasks are held", [one.node for one in stuck if one.hold]),
            ):
                if chosen:
                    screen.say(f"given up, since {why}: {', '.join(chosen)}")
            try:
                engine.cancel(follower.run, [one.node for one in stuck])
            except EngineError as error:
                screen.say(error.what)
            stalled_since = None
        time.sleep(follower.pause_s)


def write_verdict(found: FleetVerdict, folder: FleetFolder) -> None:
    """Write the page and the JSON of a fleet, as `fleet report` builds them."""
    for form, path in (("html", folder.page), ("json", folder.summary)):
        write_shared(path, FORMATS[form](found))


def print_drained(folder: FleetFolder, found: FleetVerdict, stream: TextIO, *, again: bool) -> None:
    """Drain the failing nodes of a fleet, and print what became of each.

    An error of Slurm is printed: the verdict is known, and its exit code matters more.
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
