"""``sentinel fleet resume``, ``cancel``, ``undrain``, and the task of one node, ``run-node``."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import click

from sentinel.burnin.reports.verdict import Verdict
from sentinel.cli.display.json_output import print_json
from sentinel.cli.display.terminal import color_option, printable
from sentinel.cli.fleet.watch import end_detached, follow_to_verdict, run_argument, say
from sentinel.cli.options.client_options import json_option
from sentinel.cli.verdict_command import VerdictCommand
from sentinel.errors import ConfigError, ExitCode, SentinelError
from sentinel.fleet.checks.shared_thresholds import check_copy
from sentinel.fleet.engine import TaskState
from sentinel.fleet.follow import engine_of
from sentinel.fleet.node_run import NodeRun, node_name, read_verdict
from sentinel.fleet.records.progress import read_reasons, record_reasons
from sentinel.fleet.records.run_file import FleetFolder, FleetRun, write_shared
from sentinel.fleet.slurm.drain import undrain_nodes
from sentinel.host.files.regular_file import why_foreign

_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the fleet's report as one JSON object."
)


@click.command("resume", cls=VerdictCommand)
@run_argument
@click.option("--detach", is_flag=True, help="Submit, and do not follow.")
@_json_option
@color_option
def resume(fleet: FleetFolder, detach: bool, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Go on with a run, by default the last one, where a node has no report or an INCOMPLETE one.

    Each goes on where it was cut off, as `burnin --resume` does, or begins. What it asks the
    engine for is as at the first time.
    """
    _check_own_files(fleet)
    _check_own_folder(fleet, fleet.read())
    with fleet.submitting():
        run, count = _submit_again(fleet)
    say(f"{run.id}: going on with {count} of {len(run.nodes)} nodes", as_json=as_json)
    if detach:
        return end_detached(fleet, run, as_json=as_json)
    return follow_to_verdict(fleet, run, give_up_s=None, as_json=as_json)


def _submit_again(fleet: FleetFolder) -> tuple[FleetRun, int]:
    """Submit the tasks of the nodes that are over and not done; return their number, too."""
    run = fleet.read()
    check_copy(fleet, run)
    engine = engine_of(run, fleet)
    tasks = engine.tasks(run)
    nodes = [
        node
        for node in run.nodes
        if tasks[node].state is TaskState.OVER
        and read_verdict(fleet.report(node)) in {None, Verdict.INCOMPLETE}
    ]
    was_cancelled = fleet.cancelled.exists()
    fleet.cancelled.unlink(missing_ok=True)
    if nodes:
        try:
            run = engine.submit(run, fleet, nodes)
        except SentinelError:
            if was_cancelled:
                _cancel(fleet)
            raise
        record_reasons(fleet, read_reasons(fleet).keys() - set(nodes), {})
    return run, len(nodes)


def _cancel(fleet: FleetFolder) -> None:
    write_shared(fleet.cancelled, f"{datetime.now().astimezone().isoformat(timespec='seconds')}")


def _check_own_files(fleet: FleetFolder) -> None:
    """Refuse what another user could have written: its command, options and plan would be run.

    Raises:
        ConfigError: There is such a file.
    """
    for path in (fleet.run_file, fleet.plan):
        foreign = why_foreign(path)
        if foreign is not None:
            what = f"{fleet.path} says what is run, and {foreign}"
            raise ConfigError(what, "The user who began the run can resume it.")


def _check_own_folder(fleet: FleetFolder, run: FleetRun) -> None:
    """Refuse a folder that the tasks would not find: a copy, or one that was moved.

    Raises:
        ConfigError: It is such a folder.
    """
    named = Path(run.command[-1]) if run.command else fleet.path
    if not FleetFolder(path=named).has_run_file():
        what = f"{fleet.path} was moved: the nodes of run {run.id} write to {named}"
        raise ConfigError(what, "Move it back, or make that path a symbolic link to it.")
    if not named.samefile(fleet.path):
        what = f"{fleet.path} is a copy of the folder of run {run.id}, whose nodes write to {named}"
        raise ConfigError(what, f"Name that one: sentinel fleet resume {named}")


@click.command("cancel", cls=VerdictCommand)
@run_argument
@json_option
@color_option
def cancel(fleet: FleetFolder, as_json: bool) -> int:  # noqa: FBT001 - click's
    """End a run, by default the last one: its nodes stop, and each reports what it has done.

    Nodes that have not begun have no report, so that the verdict is INCOMPLETE.
    """
    run = fleet.read()
    # The nodes look for this file, whatever the engine still can or knows.
    _cancel(fleet)
    engine_of(run, fleet).cancel(run)
    if as_json:
        print_json({"run": run.id, "folder": fleet.path})
    else:
        print(f"cancelled {run.id}; the verdict: sentinel fleet report --watch {fleet.path}")
    return int(ExitCode.OK)


@click.command("undrain", cls=VerdictCommand)
@run_argument
@json_option
@color_option
def undrain(fleet: FleetFolder, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Let Slurm use the nodes again that a run has drained, by default the last one.

    A node whose reason was changed since stays as it is.
    """
    fleet.read()
    results = undrain_nodes(fleet)
    if as_json:
        undrained = [node for node, why_not in results.items() if why_not is None]
        left = {node: why_not for node, why_not in results.items() if why_not is not None}
        print_json({"undrained": undrained, "left": left})
        return int(ExitCode.OK)
    for node, why_not in results.items():
        stays = f"not undrained: {node}: {why_not}"
        print(f"undrained {node}" if why_not is None else printable(stays))
    if not results:
        print("this run has drained no node")
    return int(ExitCode.OK)


@click.command("run-node", cls=VerdictCommand, hidden=True)
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--node", metavar="NAME", help="Its name in the run.  [default: found out]")
def run_node(folder: Path, node: str | None) -> int:
    """Burn this node in as a part of the run in DIR; the exit code is that of its verdict."""
    fleet = FleetFolder(path=folder)
    run = fleet.read()
    name = node or node_name(run, os.environ)
    try:
        return NodeRun(fleet, name, os.environ).run()
    finally:
        if not fleet.cancelled.exists():
            try:
                # Read again: a resumption since has added tasks, which count.
                engine_of(run, fleet).advance(fleet.read(), ending=name)
            except SentinelError as error:  # a command that follows the run does it, too
                click.echo(f"sentinel: {error}", err=True)
